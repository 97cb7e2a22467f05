"""compile: graph -> prune -> fuse -> select -> place -> Plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Mapping

from ..graph.ir import Format, Graph
from .columns import concat_columns
from .context import Context
from .fuse import fuse, prune
from .place import matrix_shape, place
from .plan import Plan
from .select import Selector, select


@dataclass(frozen=True)
class Prepared:
    """A model's graph ready to compile: columns concatenated, formats of every weight known.

    sources  concatenated weight -> the model weights it is made of
    rows     rows of every model weight
    """

    graph: Graph
    formats: Mapping[str, Format]
    sources: Mapping[str, tuple[str, ...]]
    rows: Mapping[str, int]


def prepare(graph: Graph, formats: Mapping[str, Format], keep: frozenset[str] = frozenset()) -> Prepared:
    """Concatenates the columns of `graph` (model weights in `formats`, vectors left out are f32)."""
    known = {w.name: formats.get(w.name, Format("f32")) for w in graph.weights()}
    rows = {w.name: matrix_shape(w)[0] for w in graph.weights()}
    columns = concat_columns(graph, known, keep)
    for name, members in columns.sources.items():
        known[name] = known[members[0]]
    return Prepared(columns.graph, known, columns.sources, rows)


def compile(prepared: Prepared, ctx: Context, keep: frozenset[str] = frozenset()) -> Plan:
    """The Plan of a prepared graph for `ctx`. Pure: same arguments, same plan.

    Raises: KernelFailed when no kernel serves a node; ModelNotSupported when a weight exceeds the device's limits.
    """
    ctx = replace(ctx, formats=prepared.formats)
    selector = Selector(ctx)
    graph = fuse(prune(prepared.graph), ctx, lambda node: selector.choose(node) is not None, keep)
    choices = [select(node, selector) for node in graph.nodes]
    return place(graph, choices, ctx, dict(prepared.sources), dict(prepared.rows))
