"""compute-sanitizer calls of Mamba-2's kernels."""

from __future__ import annotations

import torch

from ..operators.measure import normal, sanitizes
from .gradients import ssd_scan_backward
from .scan import ssd_scan, ssd_summary


@sanitizes("ssd/prefill_mma", variables={"GDN_SSD_PREFILL": "mma"})
@sanitizes("ssd/prefill", "steps")
def _prefill() -> None:
    """One head a block and two, z and D, lengths around a chunk, segments, packed sequences, offsets and slots that lie."""
    for dtype in (torch.bfloat16, torch.float16):
        for states in (64, 128, 256):
            for tokens in (1, 64, 201, 1200):

                def rows(*sizes: int, tokens: int = tokens, dtype: torch.dtype = dtype) -> torch.Tensor:
                    return normal(1, tokens, *sizes, device="cuda", dtype=dtype)

                heads = 3
                rates = -torch.rand(heads, device="cuda")
                x = {"x": rows(heads, 64), "dt": rows(heads), "A": rates, "B": rows(1, states)}
                C, start = rows(1, states), torch.randn(2, heads, 64, states, device="cuda")
                ssd_scan(**x, C=C, D=rates, z=rows(heads, 64), initial_state=start[:1], dt_softplus=True)
                ssd_summary(**x, initial_state=start[:1], dt_softplus=True)
                for slot in (1, -1, 2):
                    ssd_scan(**x, C=C, state=start, state_indices=torch.tensor([slot], device="cuda"), dt_softplus=True)
                for offsets in ([0, 1, 1, tokens], [0, tokens, 0, tokens], [900, 20, -5, 3]):
                    ssd_scan(**x, C=C, cu_seqlens=torch.tensor(offsets, device="cuda"), dt_softplus=True)


@sanitizes("backward")
def _backward() -> None:
    """Row tiles that a head fills and not, D, both ends' states, packed sequences, and offsets that lie."""
    for dtype in (torch.bfloat16, torch.float16):
        for channels, states in ((64, 64), (80, 128), (128, 128)):
            for tokens in (1, 64, 201):
                heads = 2
                x, slope = (normal(1, tokens, heads, channels, device="cuda", dtype=dtype) for _ in range(2))
                dt = normal(1, tokens, heads, device="cuda", dtype=dtype)
                B, C = (normal(1, tokens, 1, states, device="cuda", dtype=dtype) for _ in range(2))
                rates, start = -torch.rand(heads, device="cuda"), torch.randn(3, heads, channels, states, device="cuda")
                ends = {"initial_state": start[:1], "state_gradient": start[1:2]}
                ssd_scan_backward(x, dt, rates, B, C, slope, D=rates, dt_bias=rates, dt_softplus=True, **ends)
                for offsets in ([0, 1, 1, tokens], [0, tokens, 0, tokens], [900, 20, -5, 3]):
                    packed = torch.tensor(offsets, device="cuda")
                    ssd_scan_backward(x, dt, rates, B, C, slope, cu_seqlens=packed, state_gradient=start)
