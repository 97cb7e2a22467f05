"""Trust: which kernel variants passed the self-test on this device, and the plans that use no other.

A variant is tested before the first plan that uses it is bound, so a chat does not wait for the sampler it does not use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1
from time import perf_counter
from typing import Callable, Iterable

from .. import kernels
from ..errors import KernelFailed
from ..kernels.core import KERNELS, Variant
from ..plan.plan import Plan
from ..plan.select import joined
from ..runtime.device import Device
from ..runtime.selftest import self_test
from .model import Model, PlanSet, plans_of
from .options import EngineOptions

Report = Callable[[int, int], None]


@dataclass
class Trust:
    """passed: (kernel, variant, constants) that agree with their reference; failed: (kernel, variant) that do not.

    is_given: nothing is tested; the numpy device never is, it is the reference
    known: digests of shader texts that passed on this very adapter and browser before; what passes is added, for the caller to keep
    """

    device: Device
    model: Model
    options: EngineOptions
    is_given: bool = False
    known: set[str] = field(default_factory=set)
    passed: set = field(default_factory=set)
    failed: frozenset[tuple[str, str]] = frozenset()
    plan_ms: float = 0.0
    selftest_ms: float = 0.0

    def plans(self) -> PlanSet:
        """All plans of the model, without variants that failed."""
        started = perf_counter()
        planset = plans_of(self.model, self.device.info, self.options, self.failed)
        self.plan_ms = (perf_counter() - started) * 1e3
        return planset

    async def tested(self, planset: PlanSet, names: Iterable[str], report: Report = lambda done, total: None) -> PlanSet:
        """`planset`, or plans made anew: every variant in plans `names` agrees with its reference; a failing one gave way to its twin.

        Raises: KernelFailed when no twin is left
        """
        names = list(names)
        while not await self._all_pass([planset.plans[n] for n in names], report):
            planset = self.plans()
        return planset

    async def _all_pass(self, plans: list[Plan], report: Report) -> bool:
        kernels.load_all()
        todo = [v for v in dict.fromkeys((s.kernel, s.variant, s.consts) for p in plans for s in p.steps)
                if v not in self.passed and digest(v[0], v[2]) not in self.known]
        if self.is_given or self.device.info.dialect == "numpy" or not todo:
            return True
        started = perf_counter()
        report(0, len(todo))
        failures = await self_test(self.device, [(path, _variant(path, name), dict(consts)) for path, name, consts in todo])
        self.selftest_ms += (perf_counter() - started) * 1e3
        report(len(todo), len(todo))
        bad = frozenset((f.kernel, f.variant) for f in failures)
        good = [v for v in todo if v[:2] not in bad]
        self.passed.update(good)
        self.known.update(digest(path, consts) for path, _, consts in good)
        if bad and bad <= self.failed:
            raise KernelFailed(f"the self-test fails on this GPU: {failures[0]}")
        self.failed |= bad
        return not failures


def digest(path: str, consts: tuple) -> str:
    """Of a kernel's joined text: another text, another self-test."""
    return sha1(joined(path, consts).code.encode()).hexdigest()[:16]


def _variant(path: str, name: str) -> Variant:
    return next(v for v in KERNELS[path].variants if v.name == name)
