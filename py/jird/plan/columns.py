"""Concatenating linears that read one input: q, k, v become one weight and one GEMV, gate and up another.

It runs once for a model, before anything is loaded, so that every plan shares the concatenated weight (no second copy).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Mapping

from ..graph.ir import Format, Graph, Node, Tensor


@dataclass(frozen=True)
class Columns:
    """The rewritten graph, and for each concatenated weight the model weights it is made of, top to bottom."""

    graph: Graph
    sources: Mapping[str, tuple[str, ...]]


def concat_columns(graph: Graph, formats: Mapping[str, Format], keep: frozenset[str] = frozenset()) -> Columns:
    """Linears with the same x, in the same format, all with or all without bias, none of them in `keep` (node ids), become one.

    Outputs of the old nodes become views (column ranges) of the new output, so consumers do not change.
    """
    groups: dict[tuple, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == "linear" and node.id not in keep and "residual" not in node.inputs and node.inputs["x"].base is None:
            w = node.inputs["w"]
            groups[node.inputs["x"].name, formats[w.name], "bias" in node.inputs].append(node)
    merged: dict[str, Node] = {}
    views: dict[str, Tensor] = {}
    dropped: set[str] = set()
    sources: dict[str, tuple[str, ...]] = {}
    for members in groups.values():
        if len(members) < 2:
            continue
        node, made = _merge(members)
        merged[members[0].id] = node
        views.update(_views(members, node.outputs["y"]))
        dropped.update(m.id for m in members[1:])
        sources.update(made)
    nodes = []
    for node in graph.nodes:
        if node.id in dropped:
            continue
        node = merged.get(node.id, node)
        nodes.append(node.with_(inputs={s: views.get(t.name, t) for s, t in node.inputs.items()}))
    return Columns(Graph(graph.name, tuple(nodes), tuple(views.get(t.name, t) for t in graph.outputs)), sources)


def _merge(members: list[Node]) -> tuple[Node, dict[str, tuple[str, ...]]]:
    """One linear for all of `members`, and the sources of its weight and bias."""
    first = members[0]
    scope = first.id.rpartition(".")[0]
    label = "+".join(m.id.rpartition(".")[2] for m in members)
    name = f"{scope}.{label}" if scope else label
    width = sum(int(m.outputs["y"].shape[-1]) for m in members)
    sources = {f"{name}.weight": tuple(m.inputs["w"].name for m in members)}
    inputs = {"x": first.inputs["x"], "w": Tensor(f"{name}.weight", (width, first.inputs["w"].shape[-1]), "f32", "weight")}
    if "bias" in first.inputs:
        inputs["bias"] = Tensor(f"{name}.bias", (width,), "f32", "weight")
        sources[f"{name}.bias"] = tuple(m.inputs["bias"].name for m in members)
    y = Tensor(name, (*first.outputs["y"].shape[:-1], width))
    return Node("linear", inputs, {"y": y}, first.attrs, name, tuple(m.id for m in members)), sources


def _views(members: list[Node], y: Tensor) -> dict[str, Tensor]:
    out, offset = {}, 0
    for m in members:
        old = m.outputs["y"]
        out[old.name] = Tensor(old.name, old.shape, old.dtype, old.kind, base=y, offset=offset)
        offset += int(old.shape[-1])
    return out
