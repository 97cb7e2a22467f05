"""Every kernel variant and case: numpy reference against WGSL run natively. Generic; a new kernel needs no line here."""

from __future__ import annotations

import asyncio

import pytest
from jird.runtime.selftest import all_kernels, baked, lacks, run_case, runs
from native import NativeDevice

# Every case with its params in a uniform buffer, and each variant's first one with its params baked into the text.
CASES = [pytest.param(kernel, variant, index, is_baked, id=f"{kernel.path}-{variant.name}-{index}{'-baked' if is_baked else ''}")
         for kernel, variant, index, is_baked in runs("")]


@pytest.fixture(scope="module")
def device():
    made = NativeDevice()
    yield made
    made.close()


@pytest.mark.parametrize("kernel, variant, index, is_baked", CASES)
def test_kernel_equals_its_reference(device, kernel, variant, index, is_baked):
    case = kernel.cases[index]
    missing = lacks(kernel, variant, case, device.info)
    if missing:
        pytest.skip(f"{device.info.name}: {missing}")
    result = asyncio.run(run_case(device, kernel, variant, case, baked(case) if is_baked else None, index))
    assert result.ok, f"{case.why or 'case'} {dict(case.params)}: {result.detail}"


@pytest.mark.parametrize("kernel", [pytest.param(k, id=k.path) for k in all_kernels().values()])
def test_some_variant_needs_no_feature_and_fits_the_default_limits(kernel):
    from jird.runtime.device import DeviceInfo
    plain = DeviceInfo("plain")
    assert any(not lacks(kernel, v, kernel.cases[0], plain) for v in kernel.variants), [lacks(kernel, v, kernel.cases[0], plain) for v in kernel.variants]
