"""The GDN operators refuse on the GPU what they refuse on the CPU, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gdn_inputs import make_step
from torch import Tensor

import gdn_cuda
from gdn_cuda.gdn.inputs import make_packed_gdn_inputs


def step(**changes: Any) -> dict[str, Any]:
    x: dict[str, Any] = make_step(3, 1, slots=5, seed=1)
    return x | {"out": torch.full_like(x["value"], 7.0, memory_format=torch.contiguous_format)} | changes


def overlapping_pool(x: dict[str, Any]) -> None:
    pool = x["state_pool"].contiguous()
    x["state_pool"] = pool.as_strided(pool.shape, (pool.stride(0) // 2, *pool.stride()[1:]))


def out_is(argument: str) -> Callable[[dict[str, Any]], None]:
    def change(x: dict[str, Any]) -> None:
        x[argument] = x[argument].contiguous()
        memory = x[argument].view(x["out"].dtype).flatten()
        x["out"] = memory[: x["out"].numel()].view(x["out"].shape)

    return change


def out_over_itself(x: dict[str, Any]) -> None:
    heads, width = x["out"].shape[2:]
    x["out"] = x["out"].as_strided(x["out"].shape, (heads * width, heads * width, width // 2, 1))


def out_requires_gradient(x: dict[str, Any]) -> None:
    x["out"].requires_grad_()


def negative_out(x: dict[str, Any]) -> None:
    x["out"] = torch._neg_view(x["out"])


@pytest.mark.parametrize(
    "change, argument",
    [
        (out_is("value"), "out"),
        (out_is("state_pool"), "out"),
        (out_over_itself, "out"),
        (overlapping_pool, "state_pool"),
        (out_requires_gradient, "out"),
        (negative_out, "out"),
    ],
)
def test_fused_decode_refuses_memory_before_anything_is_written(
    change: Callable[[dict[str, Any]], None], argument: str
) -> None:
    x = step()
    change(x)
    before = {name: each.detach().clone() for name, each in x.items() if isinstance(each, Tensor)}
    with pytest.raises(ValueError, match=f"fused_decode: {argument}: expected memory "):
        gdn_cuda.fused_decode(**x)
    for name, each in before.items():
        torch.testing.assert_close(each, x[name].detach(), rtol=0, atol=0, equal_nan=True)


def test_out_may_lie_between_slices_of_the_input_buffer() -> None:
    x = step()
    expected_pool = x["state_pool"].clone()
    expected = gdn_cuda.fused_decode(**x | {"state_pool": expected_pool, "out": None})
    rows = x["value"].flatten(-2)
    packed = torch.cat([rows, torch.zeros_like(rows), rows], -1)
    width = rows.shape[-1]
    value, out = (packed[..., i * width : (i + 1) * width].unflatten(-1, x["value"].shape[-2:]) for i in (0, 1))
    gdn_cuda.fused_decode(**x | {"value": value, "out": out})
    assert torch.equal(out, expected) and torch.equal(x["state_pool"], expected_pool)
    assert torch.equal(packed[..., 2 * width :], rows) and torch.equal(packed[..., :width], rows)


def test_the_call_works_and_backward_raises() -> None:
    x, plain = step(), step()
    x["A_log"].requires_grad_()
    expected = gdn_cuda.fused_decode(**plain)
    out = gdn_cuda.fused_decode(**x)
    assert out is x["out"] and torch.equal(out.detach(), expected)
    assert torch.equal(x["state_pool"].detach(), plain["state_pool"])
    for written in (out, x["state_pool"]):
        with pytest.raises(RuntimeError, match="fused_decode: no gradient"):
            written.float().sum().backward()


def test_overwriting_what_autograd_saved_is_noticed() -> None:
    x, weight = step(), torch.ones((), device="cuda", requires_grad=True)
    loss = (weight * x["out"].float() * x["out"]).sum()
    gdn_cuda.fused_decode(**x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_more_matrices_than_a_grid_has_blocks_are_refused() -> None:
    x = torch.zeros(1, 1, 1, device="cuda", dtype=torch.bfloat16).expand(2**32 + 1, 1, 1)
    with pytest.raises(ValueError, match="transpose_to_mn_major: input: expected sizes of at most"):
        gdn_cuda.transpose_to_mn_major(x)


@pytest.mark.parametrize("argument", ["query", "A_log", "state_pool"])
def test_none_for_a_tensor_is_a_one_line_error(argument: str, capfd: pytest.CaptureFixture[str]) -> None:
    expected = "a tensor, as a has a gate for each head" if argument == "A_log" else "a tensor"
    with torch.no_grad(), pytest.raises(ValueError, match=f"^fused_decode: {argument}: expected {expected}, got None$"):
        gdn_cuda.fused_decode(**step(**{argument: None}))
    assert capfd.readouterr() == ("", "")


def test_what_chunked_forward_does_not_read_changes_nothing() -> None:
    x = make_packed_gdn_inputs([70, 3], dk=64, dv=64, dtype=torch.bfloat16, device="cuda", seed=1)
    expected, _ = gdn_cuda.chunked_forward(**x)
    for device in ("cuda", "cpu"):
        unread = torch.tensor([-1, 1 << 30], dtype=torch.int32, device=device)
        assert torch.equal(gdn_cuda.chunked_forward(**x, chunk_indices=unread, cu_chunks=unread)[0], expected)
