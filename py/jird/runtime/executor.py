"""The executor: gives a model's plans their buffers and binds each plan once, into a recording that is replayed every step."""

from __future__ import annotations

from asyncio import gather
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Mapping

from ..plan.plan import BufferRef, Plan, WeightSpec
from .device import UNIFORM_ALIGN, Bound, Device, Slice


@dataclass(repr=False)
class ModelBuffers:
    """Every device buffer of one model: weights ("name#part"), states by name, temps shared by all plans, arenas.

    Made for all plans at once, so that what is allocated is known before anything is bound.
    """

    device: Device
    weights: dict[str, Any] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    pool: list[Any] = field(default_factory=list)
    steps: dict[str, Any] = field(default_factory=dict)
    arenas: list[Any] = field(default_factory=list)
    nbytes: int = 0
    _pool_bytes: list[int] = field(default_factory=list)

    async def make(self, label: str, nbytes: int, uniform: bool = False) -> Any:
        size = max(16, -(-nbytes // 16) * 16)
        buffer = await self.device.create_buffer(label, size, uniform=uniform)
        self.nbytes += size
        return buffer

    async def allocate(self, plans: Mapping[str, Plan], step_rows: Mapping[str, int]) -> None:
        """All buffers of `plans`; step_rows: step buffer name -> rows.

        Raises: OutOfMemory; what was made is destroyed.
        """
        try:
            for spec in weight_specs(plans):
                for part, nbytes in spec.format.parts(spec.rows, spec.columns).items():
                    self.weights[f"{spec.name}#{part}"] = await self.make(f"w/{spec.name}#{part}", nbytes)
            for name, nbytes in state_sizes(plans).items():
                self.states[name] = await self.make(f"state/{name}", nbytes)
            self._pool_bytes = pool_sizes(plans)
            for i, nbytes in enumerate(self._pool_bytes):
                self.pool.append(await self.make(f"pool/{i}", nbytes))
            for name, rows in step_rows.items():
                self.steps[name] = await self.make(f"step/{name}", rows * 32, uniform=True)
        except Exception:
            self.destroy()
            raise

    async def _pool_for(self, plan: Plan) -> list[Any]:
        """The shared temps; a plan made anew after a failed self-test may need larger ones, and then has its own."""
        if len(plan.pool) <= len(self.pool) and all(n <= m for n, m in zip(plan.pool, self._pool_bytes, strict=False)):
            return self.pool
        own = [await self.make(f"{plan.name}/pool/{i}", nbytes) for i, nbytes in enumerate(plan.pool)]
        self.arenas += own
        return own

    def _slice(self, ref: BufferRef, step: str, pool: list[Any]) -> Slice:
        where = {"weight": self.weights, "state": self.states}.get(ref.kind)
        if ref.kind == "pool":
            return Slice(pool[int(ref.key)], ref.offset, ref.nbytes)
        if ref.kind == "step":
            return Slice(self.steps[step])
        assert where is not None and ref.key in where, f"no buffer for {ref}"
        return Slice(where[ref.key], ref.offset, ref.nbytes)

    async def bind(self, plan: Plan, step: str) -> Any:
        """The recording of `plan` on step buffer `step`; pipelines are compiled in parallel, the arena is written once."""
        keys = list(dict.fromkeys((s.kernel, s.consts, s.features) for s in plan.steps))
        made = await gather(*(self.device.compile(path, dict(consts), features) for path, consts, features in keys))
        pipelines = dict(zip(keys, made, strict=True))
        arena = None
        if plan.params:
            arena = await self.make(f"{plan.name}/params", len(plan.params), uniform=True)
            self.arenas.append(arena)
            self.device.write(arena, 0, plan.params)
        pool = await self._pool_for(plan)
        bound = []
        for s in plan.steps:
            slices = tuple(Slice(arena, s.params_offset, UNIFORM_ALIGN) if ref is None else self._slice(ref, step, pool) for _, ref in s.bindings)
            bound.append(Bound(pipelines[s.kernel, s.consts, s.features], slices, s.grid, s.label))
        return self.device.record(bound, plan.name)

    def destroy(self) -> None:
        """Frees everything, now."""
        for buffer in (*self.weights.values(), *self.states.values(), *self.pool, *self.steps.values(), *self.arenas):
            self.device.destroy(buffer)
        for held in (self.weights, self.states, self.pool, self.steps, self.arenas):
            held.clear()
        self.nbytes = 0


def weight_specs(plans: Mapping[str, Plan]) -> list[WeightSpec]:
    """The weights of all plans, each once. A name with two shapes or formats is our own mistake."""
    specs: dict[str, WeightSpec] = {}
    for plan in plans.values():
        for spec in plan.weights:
            first = specs.setdefault(spec.name, spec)
            assert first == spec, f"weight {spec.name} differs between plans: {first} and {spec}"
    return list(specs.values())


def state_sizes(plans: Mapping[str, Plan]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for plan in plans.values():
        for name, nbytes in plan.states.items():
            sizes[name] = max(sizes.get(name, 0), nbytes)
    return sizes


def pool_sizes(plans: Mapping[str, Plan]) -> list[int]:
    """The temp pool that serves every plan (they never run at once)."""
    return [max(nbytes) for nbytes in zip_longest(*(plan.pool for plan in plans.values()), fillvalue=0)]
