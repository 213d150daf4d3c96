"""A caller may change outputs on a GPU in place under autograd, as the peers' own tests do. If one of several outputs were a
view, that would raise. (Operators whose backward reads their output raise, as torch's own do.)"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gdn_cuda import causal_conv1d, hyena_long, selective_scan

B, D, L, N = 2, 16, 40, 4


def rows() -> Tensor:
    """(B, D, L) with contiguous channels, as a projection leaves them."""
    return torch.randn(B, L, D, device="cuda").transpose(1, 2).requires_grad_()


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda").requires_grad_()


OPERATORS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "causal_conv1d": lambda: causal_conv1d(rows(), normal(D, 4), return_final_states=True),
    "hyena_long": lambda: hyena_long(rows(), rows(), rows(), normal(D, N), -normal(D, N).exp(), normal(D), return_state=True),
    "selective_scan": lambda: selective_scan(
        rows(), rows(), -normal(D, N).exp(), normal(B, N, L), normal(B, N, L), delta_softplus=True, return_last_state=True
    ),
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_outputs_can_be_changed_in_place(operator: Callable[[], tuple[Tensor, Tensor]]) -> None:
    out, state = operator()
    assert out.stride(1) == 1
    gradients = []
    out.register_hook(gradients.append)
    (out.mul_(2).sum() + state.mul_(3).sum()).backward()
    assert torch.equal(gradients[0], torch.full_like(out, 2))
