"""`gdn_cuda.compat.fla` with `cp_context` beside one process, in fp64. Every rank checks what it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from layer_cases_on_ranks import drawn, gradients, offsets
from parallel_cases import BOUND
from torch import Tensor
from torch.nn.functional import normalize

from gdn_cuda.compat import fla
from gdn_cuda.compat.fla import FLACPContext
from gdn_cuda.parallel.ranks import ranks_of

LAYOUTS = ("contiguous", "zigzag")
LENGTHS = (30, 0, 2, 80, 8)  # 120 tokens: a multiple of 2, 4, 6 and 8
NAMES = ("q", "k", "v", "g", "beta")


def as_of_fla(context: FLACPContext) -> Any:
    """A context with FLA's attributes alone."""
    return SimpleNamespace(**{each.name: getattr(context, each.name) for each in fields(context) if each.name != "shared"})


def tokens_of(rank: int, size: int, layout: str, tokens: int) -> Tensor:
    every = torch.arange(tokens).chunk(size if layout == "contiguous" else 2 * size)
    return every[rank] if layout == "contiguous" else torch.cat([every[rank], every[2 * size - 1 - rank]])


class Rule(NamedTuple):
    """A function, and the form of its gates: logarithms, or raw ones with parameters and logits of betas."""

    function: str
    form: str = "log"

    def call(self) -> dict[str, Tensor]:
        """In a form of raw gates A_log and dt_bias have shapes that models keep."""
        by_channel = self.function == "chunk_kda"
        x = {name: drawn(1, sum(LENGTHS), 2, *[8] * (name in "qkv"), seed=i) for i, name in enumerate(NAMES)}
        if by_channel:
            x["g"] = drawn(1, sum(LENGTHS), 2, 8, seed=3)
        if self.form != "log":
            x["A_log"] = drawn(*((1, 1, 2, 1) if by_channel else (2,)), seed=5)
            x["dt_bias"] = drawn(16 if by_channel else 2, seed=6)
            if self.form == "bound alone":
                del x["A_log"]
            return x
        return x | {"k": normalize(x["k"], dim=-1), "g": -x["g"].abs() / 10, "beta": x["beta"].sigmoid()}

    @property
    def options(self) -> dict[str, Any]:
        if self.form == "log":
            return {}
        raw = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
        bound = {"lower_bound": -5.0} if self.form != "raw" else {}
        return raw | bound | {"use_qk_l2norm_in_kernel": True, "state_v_first": True}

    def run(self, x: dict[str, Tensor], grad: Tensor, grad_last: Tensor, **more: Any) -> dict[str, Tensor]:
        """The output, the last states and all gradients."""
        leaves = {name: y.clone().requires_grad_() for name, y in x.items()}
        out, last = getattr(fla, self.function)(**leaves, output_final_state=True, **self.options, **more)
        found = torch.autograd.grad([out, last], list(leaves.values()), [grad, grad_last])
        return {"out": out.detach(), "last": last.detach()} | dict(zip(leaves, found, strict=True))


RULES = (
    Rule("chunk_gated_delta_rule"),
    Rule("chunk_gated_delta_rule", "raw"),
    Rule("chunk_kda"),
    *(Rule("chunk_kda", form) for form in ("raw", "bound", "bound alone")),
)
WEIGHTS = ("A_log", "dt_bias")
Convert = Callable[[FLACPContext], Any]  # may make another kind of context


def as_it_is(context: FLACPContext) -> Any:
    return context


def check_rule(
    group: Any,
    rank: int,
    size: int,
    layout: str,
    rule: Rule,
    convert: Convert = as_it_is,
    lengths: Sequence[int] = LENGTHS,
    x: dict[str, Tensor] | None = None,
    spoilt: int | None = None,
) -> None:
    """States that a rank must not read are NaN, and so are gradients of those that it does not have. `x` has other rows than
    the rule's. Results of the sequence `spoilt` are not compared."""
    cu_seqlens, x = offsets(lengths), rule.call() if x is None else x
    context = convert(fla.build_cp_context(cu_seqlens, group, 4, layout=layout))
    mine = tokens_of(rank, size, layout, sum(lengths))
    rows = context.cu_seqlens.diff().tolist()
    starts = mine[context.cu_seqlens[:-1]].tolist()
    sequences = [int(torch.searchsorted(cu_seqlens, first, right=True)) - 1 for first in starts]
    begins = torch.tensor([first in cu_seqlens for first in starts])[:, None, None, None]
    ends = torch.tensor([first + n in cu_seqlens for first, n in zip(starts, rows, strict=True)])[:, None, None, None]
    count = len(lengths)
    state, grad, grad_last = (drawn(*sizes, seed=9) for sizes in ((count, 2, 8, 8), x["v"].shape, (count, 2, 8, 8)))
    wanted = rule.run(x | {"initial_state": state}, grad, grad_last, cu_seqlens=cu_seqlens)
    own = {name: y if name in WEIGHTS else y[:, mine] for name, y in x.items()}
    own["initial_state"] = torch.where(begins, state[sequences], torch.nan)
    found = rule.run(own, grad[:, mine], torch.where(ends, grad_last[sequences], torch.nan), cp_context=context)
    parts = {name: wanted[name][:, mine] for name in ("out", *NAMES)}
    parts["last"] = torch.where(ends, wanted["last"][sequences], 0)
    parts["initial_state"] = torch.where(begins, wanted["initial_state"][sequences], 0)
    for name in [name for name in WEIGHTS if name in x]:
        parts[name] = wanted[name]
        found[name] = ranks_of("check_rule", group).start_all_gather(found[name])().sum(0)
    rows_kept = torch.searchsorted(cu_seqlens, mine, right=True) - 1 != spoilt
    states_kept = torch.tensor([each != spoilt for each in sequences])
    for name, part in parts.items():
        bound, whole = BOUND, wanted[name]
        if name in WEIGHTS:
            bound *= 10  # sums over all tokens, which cancel
        elif name in ("last", "initial_state"):
            part, found[name] = part[states_kept], found[name][states_kept]
        else:
            part, found[name] = part[:, rows_kept], found[name][:, rows_kept]
        error = (found[name] - part).norm()
        assert error <= bound * whole[whole.isfinite()].norm(), (rule, name, layout, rank, size, error)


def check_fla(group: Any, rank: int, size: int, layout: str, convert: Convert = as_it_is) -> None:
    for rule in RULES:
        check_rule(group, rank, size, layout, rule, convert)
    check_convolution(group, rank, size, layout, convert)


def check_convolution(group: Any, rank: int, size: int, layout: str, convert: Convert) -> None:
    cu_seqlens = offsets(LENGTHS)
    context = convert(fla.build_cp_context(cu_seqlens, group, 4, layout=layout))
    mine = tokens_of(rank, size, layout, sum(LENGTHS))
    conv = {"x": drawn(1, sum(LENGTHS), 3, seed=1), "weight": drawn(3, 4, seed=2), "bias": drawn(3, seed=3)}
    grad = drawn(1, sum(LENGTHS), 3, seed=4)
    whole = {name: y.clone().requires_grad_() for name, y in conv.items()}
    wanted = gradients(fla.causal_conv1d(**whole, activation="swish", cu_seqlens=cu_seqlens)[0], grad, whole)
    own = {name: (y[:, mine] if name == "x" else y).clone().requires_grad_() for name, y in conv.items()}
    found = gradients(fla.causal_conv1d(**own, activation="swish", cp_context=context)[0], grad[:, mine], own)
    for name in ("out", "x"):
        assert (found[name] - wanted[name][:, mine]).norm() <= BOUND * wanted[name].norm(), (name, layout, rank, size)
