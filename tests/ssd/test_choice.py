"""Which kernels run Mamba-2's scan on which GPU."""

from __future__ import annotations

import pytest
import torch

from gdn_cuda.operators import examples
from gdn_cuda.operators.explain import explained
from gdn_cuda.ssd import scan

EXAMPLES = examples.load()
A100, HOPPER, TURING = (8, 0), (9, 0), (7, 5)


class OnGpu(torch.Tensor):
    """Without memory."""

    is_cuda = True

    @staticmethod
    def make(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta").as_subclass(OnGpu)


@pytest.mark.parametrize(
    "name", [name for name in EXAMPLES if name.startswith(("ssd_scan", "ssd_summary")) and "back" not in name]
)
def test_the_device_decides(name: str) -> None:
    case = EXAMPLES[name]

    def kernels(device: str) -> set[str]:
        steps = explained(case.function, device=device, **case.make(2, 70, 0)).steps
        return {step["kernel"] for step in steps} - {"ssd/steps", "common/uncovered_zeros"}

    assert kernels("h200") == {"ssd/prefill"}
    assert kernels("a100") == kernels("l40s") == kernels("sm_120") == {"ssd/prefill_mma"}


@pytest.mark.parametrize(
    "gpu, P, N, dtype, gradients, expected",
    [
        (HOPPER, 64, 128, torch.bfloat16, True, True),
        (HOPPER, 64, 256, torch.bfloat16, True, False),
        (A100, 64, 256, torch.float16, False, True),
        (A100, 64, 128, torch.bfloat16, True, False),
        (A100, 64, 264, torch.bfloat16, False, False),
        (A100, 12, 128, torch.bfloat16, False, False),
        (A100, 64, 128, torch.float32, False, False),
        (TURING, 64, 128, torch.float16, False, False),
    ],
)
def test_what_has_a_kernel(
    gpu: tuple[int, int],
    P: int,
    N: int,
    dtype: torch.dtype,
    gradients: bool,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: gpu)
    x = OnGpu.make(1, 70, 2, P, dtype=dtype)
    assert scan.has_kernel(x, OnGpu.make(1, 70, 1, N), gradients) == expected
