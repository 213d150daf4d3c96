"""selective_scan against itself: sequences in two calls, packed, in either layout, repeated, compiled, transformed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import oracle
import pytest
import torch
from oracle import DISCRETIZATIONS, relative_rms
from selective_inputs import Draw, channels_last, selective_inputs
from torch import Tensor
from torch.autograd import forward_ad

import gdn_cuda

ALONG_TOKENS = ("u", "delta", "z", "delta_a", "B", "C")


def scan(**x: Any) -> tuple[Tensor, Tensor]:
    return gdn_cuda.selective_scan(**x, return_last_state=True)


def tokens(x: dict[str, Any], first: int, end: int) -> dict[str, Any]:
    return x | {k: x[k][..., first:end] for k in ALONG_TOKENS if k in x and x[k].dim() > 2}


@pytest.mark.parametrize("split", [0, 1, 64, 69, 70])
@pytest.mark.parametrize("name", DISCRETIZATIONS)
def test_tokens_in_two_parts(name: str, split: int, seed: int) -> None:
    x = selective_inputs(seed, name, dtype=torch.float64)
    out, last = scan(**x)
    first, state = scan(**tokens(x, 0, split))
    second, end = scan(**tokens(x, split, 70) | {"initial_state": state})
    assert relative_rms(torch.cat([first, second], -1), out) < 1e-14 and relative_rms(end, last) < 1e-14


def test_gradients_flow_through_the_state_between_two_parts(seed: int) -> None:
    x = selective_inputs(seed, dtype=torch.float64)

    def in_parts(**x: Any) -> tuple[Tensor, Tensor]:
        first, state = scan(**tokens(x, 0, 40))
        second, end = scan(**tokens(x, 40, 70) | {"initial_state": state})
        return torch.cat([first, second], -1), end

    out, last = scan(**x)
    grads = torch.randn_like(out), torch.randn_like(last)
    wanted = oracle.gradients(scan, x, *grads)
    for argument, found in oracle.gradients(in_parts, x, *grads).items():
        assert relative_rms(found, wanted[argument]) < 1e-13, argument


@pytest.mark.parametrize("offsets", [torch.int32, torch.int64])
def test_packed_sequences_equal_separate_calls(offsets: torch.dtype, seed: int) -> None:
    cu_seqlens = [0, 0, 1, 65, 65, 129, 140]
    x = selective_inputs(seed, batch=1, length=140, groups=2, cu_seqlens=cu_seqlens)
    x["cu_seqlens"] = x["cu_seqlens"].to(offsets)
    out, last = scan(**x)
    for n, (first, end) in enumerate(pairwise(cu_seqlens)):
        alone = tokens(x, first, end) | {"cu_seqlens": None, "initial_state": x["initial_state"][n : n + 1]}
        expected, expected_last = scan(**alone)
        assert torch.equal(out[..., first:end], expected) and torch.equal(last[n : n + 1], expected_last)


def test_tokens_after_the_last_sequence_have_no_output_and_no_gradient(seed: int) -> None:
    x = selective_inputs(seed, batch=1, length=9, cu_seqlens=[0, 4])
    out, last = scan(**x)
    assert not out[..., 4:].any() and out[..., :4].any()
    found = oracle.gradients(scan, x, torch.ones_like(out), torch.ones_like(last))
    assert not any(found[k][..., 4:].any() for k in ALONG_TOKENS)


@pytest.mark.parametrize("cu_seqlens", [[0], [0, 0, 0]])
def test_no_tokens_leave_the_initial_state(cu_seqlens: list[int], seed: int) -> None:
    x = selective_inputs(seed, batch=1, length=0, cu_seqlens=cu_seqlens)
    out, last = scan(**x)
    assert out.shape == (1, 4, 0) and torch.equal(last, x["initial_state"])
    del x["initial_state"]
    assert torch.equal(scan(**x)[1], torch.zeros_like(last))


@pytest.mark.parametrize("batch, dim, length", [(2, 4, 0), (0, 4, 5), (2, 0, 5)])
def test_empty_tensors(batch: int, dim: int, length: int, seed: int) -> None:
    x = selective_inputs(seed, batch=batch, dim=dim, length=length)
    out, last = scan(**x)
    assert out.shape == (batch, dim, length) and last.shape == (batch, dim, 3)
    found = oracle.gradients(scan, x, torch.ones_like(out), torch.ones_like(last))
    assert torch.equal(found["initial_state"], torch.ones_like(last) if length == 0 else found["initial_state"])


@pytest.mark.parametrize("is_complex", [False, True])
def test_both_layouts_have_the_same_results_in_their_own(is_complex: bool, seed: int) -> None:
    x = selective_inputs(seed, is_complex=is_complex, dtype=torch.bfloat16)
    y = {k: channels_last(v) if k in ALONG_TOKENS else v for k, v in x.items()}
    (out, last), (out_y, last_y) = scan(**x), scan(**y)
    assert torch.equal(out, out_y) and torch.equal(last, last_y)
    assert out.is_contiguous() and out_y.mT.is_contiguous()
    grads = torch.randn_like(out), torch.randn_like(last)
    x_gradients, y_gradients = oracle.gradients(scan, x, *grads), oracle.gradients(scan, y, *grads)
    for argument, found in x_gradients.items():
        assert torch.equal(found, y_gradients[argument])
        if argument in ("u", "delta", "z", "delta_a"):
            assert found.is_contiguous() and y_gradients[argument].mT.is_contiguous()


def test_any_strides(seed: int) -> None:
    x = selective_inputs(seed, groups=2)
    spread = {k: torch.stack([v, v], -1)[..., 0] if isinstance(v, Tensor) else v for k, v in x.items()}
    (out, last), (out_s, last_s) = scan(**x), scan(**spread)
    assert torch.equal(out, out_s) and torch.equal(last, last_s) and out_s.is_contiguous()
    expanded = x | {"A": x["A"][:1].expand(4, 3)}
    assert torch.equal(scan(**expanded)[0], scan(**x | {"A": expanded["A"].contiguous()})[0])


def test_two_runs_are_bit_identical(seed: int) -> None:
    x = selective_inputs(seed, batch=3, dim=6)
    out, last = scan(**x)
    again = scan(**x)
    assert torch.equal(out, again[0]) and torch.equal(last, again[1])
    grads = torch.randn_like(out), torch.randn_like(last)
    wanted = oracle.gradients(scan, x, *grads)
    assert all(torch.equal(found, wanted[k]) for k, found in oracle.gradients(scan, x, *grads).items())


def test_the_last_state_is_returned_on_request(seed: int) -> None:
    x = selective_inputs(seed)
    out = gdn_cuda.selective_scan(**x)
    assert isinstance(out, Tensor) and torch.equal(out, scan(**x)[0])


def test_either_result_may_be_the_only_one_with_a_gradient(seed: int) -> None:
    x = selective_inputs(seed)
    out, last = scan(**x)
    zeros = torch.zeros_like(out), torch.zeros_like(last)
    both = torch.randn_like(out), torch.randn_like(last)
    u = x["u"].clone().requires_grad_()
    out, last = scan(**x | {"u": u})
    (from_last,) = torch.autograd.grad(last, u, both[1], retain_graph=True)
    (from_out,) = torch.autograd.grad(out, u, both[0])
    assert torch.equal(from_last, oracle.gradients(scan, x, zeros[0], both[1])["u"])
    assert torch.equal(from_out, oracle.gradients(scan, x, both[0], zeros[1])["u"])


def test_states_are_kept_for_backward_alone(seed: int) -> None:
    x = selective_inputs(seed, length=130)
    order = gdn_cuda.scan.selective._scan.schema.arguments
    given = [x.get(argument) for argument in order[:-3]] + [True, "mamba"]
    operator = torch.ops.gdn_cuda.selective_scan
    assert [operator(*given, keep)[2].shape[0] for keep in (False, True)] == [0, 2 * 3]
    _, middle = scan(**tokens(x, 0, 64))
    assert torch.equal(operator(*given, True)[2][1], middle[0])

    u = x["u"].requires_grad_()
    states = operator(*given, True)[2]
    assert u.requires_grad and not states.requires_grad


# ---- Compiled and transformed


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles_as_one_graph(dynamic: bool, seed: int) -> None:
    torch._dynamo.reset()
    x = selective_inputs(seed, groups=2)
    out, last = scan(**x)
    grads = torch.randn_like(out), torch.randn_like(last)
    wanted = oracle.gradients(scan, x, *grads)
    compiled = torch.compile(scan, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    assert torch.equal(compiled(**x)[0], out)
    for argument, found in oracle.gradients(compiled, x, *grads).items():
        assert relative_rms(found, wanted[argument]) < 1e-6, argument


def test_gradients_of_gradients_are_refused(seed: int) -> None:
    x = selective_inputs(seed)
    u = x["u"].requires_grad_()
    (grad,) = torch.autograd.grad(gdn_cuda.selective_scan(**x).square().sum(), u, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^selective_scan: gradients of gradients are not computed$"):
        torch.autograd.grad(grad.sum(), u)


def test_forward_mode_is_refused(seed: int) -> None:
    x = selective_inputs(seed)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x["u"], torch.ones_like(x["u"]))
        with pytest.raises(RuntimeError, match=r"^selective_scan: forward-mode derivatives are not computed$"):
            gdn_cuda.selective_scan(**x | {"u": dual})


def test_torch_func_has_its_gradients(seed: int) -> None:
    x = selective_inputs(seed)
    wanted = oracle.gradients(scan, x, torch.ones_like(x["u"]), None)["u"]
    found = torch.func.grad(lambda u: gdn_cuda.selective_scan(**x | {"u": u}).sum())(x["u"])
    assert torch.equal(found, wanted)


def test_a_small_mamba_learns(seed: int) -> None:
    """The scan in a training step: gradients of A and of the projections lower a loss."""
    draw = Draw(seed)
    weights = [draw.normal(8, 3).mul_(0.3), draw.normal(8, 3).mul_(0.3), draw.uniform(8, 3, low=-1, high=1)]
    to_B, to_C, A_log = (w.requires_grad_() for w in weights)
    u = draw.normal(4, 8, 20)
    optimizer = torch.optim.Adam([to_B, to_C, A_log], lr=0.03)
    losses = []
    for _ in range(30):
        B, C = (torch.einsum("bdl,dn->bnl", u, w) for w in (to_B, to_C))
        out = gdn_cuda.selective_scan(u, torch.full_like(u, 0.3), -A_log.exp(), B, C)
        loss = (out[..., 1:] - u[..., :-1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
