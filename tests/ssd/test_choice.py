"""Which kernels run Mamba-2's scan on which GPU."""

from __future__ import annotations

import pytest
import torch

from gdn_cuda.operators import capability, examples
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


AROUND = {"ssd/steps", "ssd/checkpoints", "gdn/move_states", "common/uncovered_zeros"}  # kernels around the scan


@pytest.mark.parametrize(
    "name", [name for name in EXAMPLES if name.startswith(("ssd_scan", "ssd_summary")) and "back" not in name]
)
def test_the_device_decides(name: str) -> None:
    case = EXAMPLES[name]

    def kernels(device: str) -> set[str]:
        steps = explained(case.function, device=device, **case.make(2, 70, 0)).steps
        return {step["kernel"] for step in steps} - AROUND

    assert kernels("h200") == {"ssd/prefill"}
    assert kernels("a100") == kernels("l40s") == kernels("sm_120") == {"ssd/prefill_mma"}


@pytest.mark.parametrize(
    "device, N, expected",
    [
        ("h200", 64, {"ssd/prefill", "ssd/backward"}),
        ("h200", 256, {"ssd/prefill", "ssd/backward_mma"}),
        ("a100", 64, {"ssd/prefill_mma", "ssd/backward_mma"}),
        ("l40s", 256, {"ssd/prefill_mma", "ssd/backward_mma"}),
        ("sm_120", 128, {"ssd/prefill_mma", "ssd/backward_mma"}),
    ],
)
def test_the_device_and_the_states_decide_for_gradients(device: str, N: int, expected: set[str]) -> None:
    case = EXAMPLES["ssd_scan_backward"]
    x = case.make(2, 70, 0)
    x |= {name: x[name].repeat(1, 1, 1, N // 64) for name in ("B", "C", "initial_state", "state_gradient")}
    steps = explained(case.function, device=device, **x).steps
    assert {step["kernel"] for step in steps} - {"ssd/steps"} == expected


@pytest.mark.parametrize(
    "gpu, P, N, dtype, expected",
    [
        (HOPPER, 64, 256, torch.bfloat16, True),
        (A100, 64, 256, torch.float16, True),
        (A100, 64, 264, torch.bfloat16, False),
        (A100, 12, 128, torch.bfloat16, False),
        (A100, 64, 128, torch.float32, False),
        (TURING, 64, 128, torch.float16, False),
    ],
)
def test_what_has_a_kernel(
    gpu: tuple[int, int],
    P: int,
    N: int,
    dtype: torch.dtype,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capability, "_known", {})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: gpu)
    x = OnGpu.make(1, 70, 2, P, dtype=dtype)
    assert scan.has_kernel(x, OnGpu.make(1, 70, 1, N)) == expected
