"""Checks that a call drops no gradient: each output has a gradient for each input that it depends on, or its backward
raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """`run(**tensors)` returns the call's results. `leaves()` makes its tensors, always with the same values. The written ones,
    `written`, are passed as results of an operation, because a leaf may not be written."""

    leaves: Callable[[], dict[str, Tensor]]
    run: Callable[..., Any]
    written: tuple[str, ...] = ()
    raises: str | None = None  # the name in the error of a backward, if it may raise

    def outputs(self, leaves: dict[str, Tensor]) -> list[Tensor]:
        given = {name: x.clone() if name in self.written else x for name, x in leaves.items()}
        found = tree_leaves((self.run(**given), [given[name] for name in self.written]))
        return [x for x in found if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())]


def summed(x: Tensor) -> Tensor:
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).double().sum()


def same(one: Tensor, other: Tensor) -> bool:
    """Whether both are equal, except for roundings of sums in another order, which depends on addresses."""
    return torch.allclose(one.detach().nan_to_num(7), other.detach().nan_to_num(7), rtol=1e-6, atol=1e-6)


def lost(call: Call) -> list[str]:
    """Dependencies that autograd misses: (output, input) without a gradient and without an error, although changing the input
    changes the output."""
    leaves = call.leaves()
    for x in leaves.values():
        x.requires_grad_()
    outputs, wrong, silent = call.outputs(leaves), [], {}
    for i, y in enumerate(outputs):
        for name, leaf in leaves.items():
            grad = None
            if y.requires_grad:
                try:
                    (grad,) = torch.autograd.grad(summed(y), leaf, retain_graph=True, allow_unused=True)
                except RuntimeError as error:
                    if call.raises is None or not str(error).startswith(
                        f"{call.raises}: no gradient is computed; for gradients use "
                    ):
                        wrong.append(f"output {i}, {name}: {error}")
                    continue
            if grad is None:
                silent.setdefault(name, []).append(i)
    for name, indices in silent.items():
        changed = call.leaves()
        with torch.no_grad():
            x = changed[name]
            x = x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())]  # without expanded dimensions
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
            x.add_((0.3 * noise).to(x.dtype))
            others = call.outputs(changed)
        wrong += [f"output {i} depends on {name} without a history" for i in indices if not same(outputs[i], others[i])]
    return wrong
