"""Every kernel variant and case: numpy reference against WGSL run natively. Generic; a new kernel needs no line here."""

from __future__ import annotations

import asyncio

import pytest
from jird.runtime.selftest import all_kernels, lacks, run_case
from native import NativeDevice

CASES = [pytest.param(kernel, variant, index, id=f"{kernel.path}-{variant.name}-{index}")
         for kernel in all_kernels().values() for variant in kernel.variants for index in range(len(kernel.cases))]


@pytest.fixture(scope="module")
def device():
    made = NativeDevice()
    yield made
    made.close()


@pytest.mark.parametrize("kernel, variant, index", CASES)
def test_kernel_equals_its_reference(device, kernel, variant, index):
    case = kernel.cases[index]
    missing = lacks(kernel, variant, case, device.info)
    if missing:
        pytest.skip(f"{device.info.name}: {missing}")
    result = asyncio.run(run_case(device, kernel, variant, case, index=index))
    assert result.ok, f"{case.why or 'case'} {dict(case.params)}: {result.detail}"


@pytest.mark.parametrize("kernel", [pytest.param(k, id=k.path) for k in all_kernels().values()])
def test_some_variant_needs_no_feature_and_fits_the_default_limits(kernel):
    from jird.runtime.device import DeviceInfo
    plain = DeviceInfo("plain")
    assert any(not lacks(kernel, v, kernel.cases[0], plain) for v in kernel.variants), [lacks(kernel, v, kernel.cases[0], plain) for v in kernel.variants]
