"""Gradients of chunked_forward on CPUs: which are computed, of which inputs, and that calls without any are refused by name."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from gradient_cases import CASE, LEAVES, PACKED, RAW, GradientCase, drawn, error, gradients_of, oracle, same, with_leaves
from operator_cases import Recorder
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gdn_cuda import chunked_forward

# ---- Which gradients are computed


def backward_calls(recorder: Recorder) -> list[tuple[Any, ...]]:
    return [args for operator, args in recorder.calls if operator.name() == "gdn_cuda::gated_delta_rule_backward"]


@pytest.mark.parametrize("names", [("value",), ("state",), ("value", "state"), ("beta",), ("query", "value"), ("A_log",)])
@pytest.mark.parametrize("case", [CASE, PACKED])
def test_only_those_that_are_asked_for(case: GradientCase, names: tuple[str, ...], seed: int) -> None:
    """Values and the state need one of the three passes of the backward."""
    x, grads = drawn(replace(case, options=RAW) if "A_log" in names else replace(case, beta="zeros"), seed)
    wanted = gradients_of(chunked_forward, x, grads)
    leaves = with_leaves(x, *names)
    results = chunked_forward(**leaves)
    with Recorder() as recorder:
        found = torch.autograd.grad(results, [leaves[name] for name in names], grads)
    assert all(torch.equal(f, wanted[name]) for name, f in zip(names, found, strict=True))
    (call,) = backward_calls(recorder)
    assert call[2] == {"value", "state"}.issuperset(names)
    results = torch.ops.gdn_cuda.gated_delta_rule_backward(*call)
    expected = [x.get(name) is not None and (not call[2] or name in ("value", "state")) for name in LEAVES]
    assert [result.numel() > 0 for result in results] == expected


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("case", [CASE, PACKED])
def test_a_result_without_a_gradient_counts_as_zero(which: int, case: GradientCase, seed: int) -> None:
    x, grads = drawn(case, seed)
    zeros = tuple(g if i == which else torch.zeros_like(g) for i, g in enumerate(grads))
    alone = tuple(g if i == which else None for i, g in enumerate(grads))
    leaves = with_leaves(x, "query", "state")
    results = chunked_forward(**leaves)
    with Recorder() as recorder:
        torch.autograd.grad(results[which], [leaves["query"], leaves["state"]], grads[which])
    (call,) = backward_calls(recorder)
    assert [given is None for given in call[:2]] == [i != which for i in (0, 1)]
    found, wanted = gradients_of(chunked_forward, x, alone), gradients_of(chunked_forward, x, zeros)
    assert all(error(found[name], wanted[name]) < 1e-6 for name in found)


def test_no_input_requires_a_gradient(seed: int) -> None:
    x, _ = drawn(CASE, seed)
    assert not any(result.requires_grad for result in chunked_forward(**x))
    with torch.no_grad():
        assert not any(result.requires_grad for result in chunked_forward(**with_leaves(x, "query")))
    assert all(result.requires_grad for result in chunked_forward(**with_leaves(x, "query")))


@pytest.mark.parametrize("case", [CASE, PACKED])
def test_results_are_those_of_a_call_without_gradients(case: GradientCase, seed: int) -> None:
    x, _ = drawn(case, seed, torch.bfloat16)
    for options in ({}, {"output_final_state": False}, {"state_dtype": torch.float16}):
        for ours, plain in zip(
            chunked_forward(**with_leaves(x, "key"), **options), chunked_forward(**x, **options), strict=True
        ):
            assert ours is plain is None or (torch.equal(ours, plain) and ours.stride() == plain.stride())


# ---- Of which inputs


@pytest.mark.parametrize("absent", ["beta", "gate", "state"])
def test_without_an_optional_input(absent: str, seed: int) -> None:
    x, grads = drawn(CASE, seed, torch.float64)
    neutral = {"beta": torch.ones_like(x["beta"]), "gate": torch.zeros_like(x["gate"]), "state": torch.zeros_like(x["state"])}
    wanted = oracle(x | {absent: neutral[absent]}, grads)
    found = gradients_of(chunked_forward, x | {absent: None}, grads)
    assert set(found) == set(wanted) - {absent}
    assert all(error(found[name], wanted[name]) < 1e-10 for name in found)


@pytest.mark.parametrize("case", [CASE, PACKED])
def test_more_query_heads_than_value_heads(case: GradientCase, seed: int) -> None:
    x, grads = drawn(case, seed, torch.float64)
    x["key"], x["value"] = x["key"][..., :1, :].contiguous(), x["value"][..., :1, :].contiguous()
    for name in ("query", "beta", "gate"):
        x[name] = torch.cat(
            [x[name][..., :2, :] if name == "query" else x[name][..., :2], x[name]], -2 if name == "query" else -1
        )
    x["query"], x["beta"], x["gate"] = x["query"][..., :3, :], x["beta"][..., :3], x["gate"][..., :3]
    x["state"] = x["state"][:, :3]
    grads = grads[0][..., :3, :], grads[1][:, :3]
    found, wanted = gradients_of(chunked_forward, x, grads), oracle(x, grads)
    for name, gradient in found.items():
        assert gradient.shape == x[name].shape and error(gradient, wanted[name]) < 1e-10, name
    value = with_leaves(x, "value")
    (alone,) = torch.autograd.grad(chunked_forward(**value), value["value"], grads)
    assert torch.equal(alone, found["value"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("asked", [None, torch.float32])
def test_states_of_16_bits(dtype: torch.dtype, asked: torch.dtype | None, seed: int) -> None:
    x, grads = drawn(CASE, seed)
    x["state"] = x["state"].to(dtype)
    leaves = with_leaves(x, "state")
    out, last = chunked_forward(**leaves, state_dtype=asked)
    assert last.dtype == (asked or dtype)
    (found,) = torch.autograd.grad((out, last), leaves["state"], (grads[0], grads[1].to(last.dtype)))
    wanted = oracle(x, (grads[0], grads[1].to(last.dtype)))["state"]
    assert found.dtype == dtype and error(found, wanted) < torch.finfo(dtype).eps


@pytest.mark.parametrize("case", [CASE, PACKED])
def test_sequences_that_start_without_their_state(case: GradientCase, seed: int) -> None:
    x, grads = drawn(case, seed, torch.float64)
    has = torch.arange(len(case.lengths)) % 2 == 0
    zeroed = x | {"state": x["state"] * has.view(-1, 1, 1, 1)}
    unread = x | {"state": x["state"].masked_fill(~has.view(-1, 1, 1, 1), torch.nan), "has_initial_state": has}
    wanted, found = gradients_of(chunked_forward, zeroed, grads), gradients_of(chunked_forward, unread, grads)
    wanted["state"] = wanted["state"] * has.view(-1, 1, 1, 1)
    assert same(found, wanted)
    without = {name: y for name, y in unread.items() if name != "state"}
    assert all(g.isfinite().all() for g in gradients_of(chunked_forward, without, grads).values())


def test_views_of_one_projection(seed: int) -> None:
    x, grads = drawn(CASE, seed)
    names, wanted = ("query", "key", "value"), gradients_of(chunked_forward, x, grads)
    lead = x["query"].shape[:2]
    projection = torch.cat([x[name].flatten(2) for name in names], -1).requires_grad_()
    sizes = [x[name].shape[2] * x[name].shape[3] for name in names]
    views = {name: part.unflatten(2, x[name].shape[2:]) for name, part in zip(names, projection.split(sizes, -1), strict=True)}
    (found,) = torch.autograd.grad(chunked_forward(**x | views), projection, grads)
    assert torch.equal(found, torch.cat([wanted[name].reshape(*lead, -1) for name in names], -1))


def test_expanded_and_strided_inputs_and_gradients(seed: int) -> None:
    x, grads = drawn(CASE, seed)
    x["query"] = x["query"][:, :1].expand_as(x["query"])
    x["state"] = x["state"][:1].expand_as(x["state"])
    x["beta"] = x["beta"][..., :1].expand_as(x["beta"])
    dense = {name: y.contiguous() if isinstance(y, Tensor) else y for name, y in x.items()}
    for given in (
        tuple(torch.ones(()).expand_as(g) for g in grads),
        tuple(g.mT.contiguous().mT for g in grads),
        (torch.stack([grads[0]] * 2, -1)[..., 0], grads[1].flip(0)),
    ):
        copies = tuple(g.contiguous() for g in given)
        for arguments in (
            x,
            dense | {"key": x["key"].mT.contiguous().mT, "value": x["value"].transpose(1, 2).contiguous().transpose(1, 2)},
        ):
            assert same(gradients_of(chunked_forward, arguments, given), gradients_of(chunked_forward, dense, copies))


def test_the_sum_of_the_output(seed: int) -> None:
    """Its gradient is one number, expanded."""
    x, grads = drawn(CASE, seed)
    leaves = with_leaves(x, "key")
    chunked_forward(**leaves)[0].sum().backward()
    wanted = gradients_of(chunked_forward, x, (torch.ones_like(grads[0]), None))["key"]
    assert torch.equal(leaves["key"].grad, wanted)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("options", [{}, RAW])
def test_tokens_of_no_sequence_have_gradients_of_zero(rank: int, options: dict[str, Any], seed: int) -> None:
    """Whatever they are, and whatever the gradient of their outputs is."""
    x, grads = drawn(replace(PACKED, options=options), seed)
    tokens = x["query"].shape[0]
    rows = [name for name in ("query", "key", "value", "beta", "gate") if name in x]
    longer = x | {name: torch.cat([x[name], torch.full_like(x[name][:7], torch.nan)]) for name in rows}
    out = torch.cat([grads[0], torch.full_like(grads[0][:7], torch.nan)])
    if rank == 4:
        longer |= {name: longer[name][None] for name in rows}
        out = out[None]
    wanted, found = gradients_of(chunked_forward, x, grads), gradients_of(chunked_forward, longer, (out, grads[1]))
    for name in rows:
        assert found[name].shape == longer[name].shape
        flat = found[name].flatten(0, rank - 3)
        assert error(flat[:tokens], wanted[name]) < 1e-6 and not flat[tokens:].any(), name
    assert all(error(found[name], wanted[name]) < 1e-6 for name in found if name not in rows)


def test_sequences_of_no_tokens(seed: int) -> None:
    x, grads = drawn(PACKED, seed)
    assert torch.equal(gradients_of(chunked_forward, x, grads)["state"][1], grads[1][1])


@pytest.mark.parametrize("batch, tokens", [(2, 0), (0, 5), (0, 0)])
def test_no_tokens_or_no_sequences(batch: int, tokens: int, seed: int) -> None:
    x, grads = drawn(CASE, seed)
    rows = {name: x[name][:batch, :tokens] for name in ("query", "key", "value", "beta", "gate")}
    found = gradients_of(
        chunked_forward, x | rows | {"state": x["state"][:batch]}, (grads[0][:batch, :tokens], grads[1][:batch])
    )
    assert torch.equal(found["state"], grads[1][:batch])
    assert all(found[name].shape == rows[name].shape for name in rows)


@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]])
def test_packed_without_tokens(offsets: list[int], seed: int) -> None:
    x, grads = drawn(PACKED, seed)
    count = len(offsets) - 1
    x = x | {"state": x["state"][:count], "cu_seqlens": torch.tensor(offsets)}
    found = gradients_of(chunked_forward, x, (grads[0], grads[1][:count]))
    assert torch.equal(found["state"], grads[1][:count])
    assert not any(found[name].any() for name in found if name != "state")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["query", "key", "value", "beta", "gate", "state", "grad_out", "grad_final_state"])
def test_others_keep_their_bits_beside_values_that_are_not_finite(name: str, bad: float, seed: int) -> None:
    """In one sequence and key head."""
    for case in (CASE, PACKED):
        x, grads = drawn(case, seed)
        all_of = x | {"grad_out": grads[0].clone(), "grad_final_state": grads[1].clone()}
        wanted = gradients_of(chunked_forward, x, grads)
        poisoned = all_of | {name: all_of[name].clone()}
        if name.endswith("state"):
            poisoned[name][0, 0, 3, 5] = bad
        else:
            first = poisoned[name] if case.packed else poisoned[name][0]
            first[9, 0] = bad
        arguments = {k: v for k, v in poisoned.items() if not k.startswith("grad_")}
        found = gradients_of(chunked_forward, arguments, (poisoned["grad_out"], poisoned["grad_final_state"]))
        for each in found:
            of_head = 1 if each in ("query", "key") else 2  # a key head has two value heads
            for gradient in (found[each], wanted[each]):
                head = gradient[:, :of_head] if each == "state" else gradient.movedim(1 if case.packed else 2, 0)[:of_head]
                if each == "state":
                    head[0] = 0
                elif case.packed:
                    head[:, :70] = 0
                else:
                    head[:, 0] = 0
            assert torch.equal(found[each], wanted[each]), each


# ---- What autograd does with it


def test_two_runs_have_the_same_bits(seed: int) -> None:
    x, grads = drawn(PACKED, seed)
    assert same(gradients_of(chunked_forward, x, grads), gradients_of(chunked_forward, x, grads))


def gradcheck_arguments(seed: int, options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    x, _ = drawn(GradientCase(lengths=(5, 0, 66), heads=(1, 2), dk=3, dv=2, options=options), seed, torch.float64)
    return x, [name for name in LEAVES if x.get(name) is not None]


@pytest.mark.parametrize(
    "options", [{}, RAW, {"gate_is_linear": True}, {"beta_is_logit": True, "allow_negative_eigenvalues": True}]
)
def test_gradcheck(options: dict[str, Any], seed: int) -> None:
    x, names = gradcheck_arguments(seed, options)

    def function(*leaves: Tensor) -> tuple[Tensor, Tensor | None]:
        return chunked_forward(**x | dict(zip(names, leaves, strict=True)))

    leaves = [x[name].requires_grad_() for name in names]
    assert torch.autograd.gradcheck(function, leaves, fast_mode=True, atol=1e-6)


def test_fp64_rows_with_fp32_gates(seed: int) -> None:
    """Gates are computed in fp64 too."""
    x, grads = drawn(GradientCase(options=RAW), seed, torch.float64)
    x |= {name: x[name].float() for name in ("beta", "gate", "A_log", "dt_bias")}
    found, wanted = gradients_of(chunked_forward, x, grads), oracle(x, grads)
    assert all(error(found[name], wanted[name]) < 1e-10 for name in ("query", "key", "value", "state"))


@pytest.mark.parametrize("name", ["query", "key", "value", "beta", "gate", "state"])
def test_a_changed_input_is_noticed(name: str, seed: int) -> None:
    x, _ = drawn(CASE, seed)
    x = with_leaves(x, "value")
    given = x[name] * 1
    out, _ = chunked_forward(**x | {name: given})
    given.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("case", [CASE, PACKED])
def test_activation_checkpointing(reentrant: bool, case: GradientCase, seed: int) -> None:
    x, grads = drawn(case, seed)
    names = [name for name in LEAVES if x.get(name) is not None]

    def checkpointed(**given: Any) -> Any:
        def run(*leaves: Tensor) -> Any:
            return chunked_forward(**given | dict(zip(names, leaves, strict=True)))

        return checkpoint(run, *(given[name] for name in names), use_reentrant=reentrant)

    plain = gradients_of(chunked_forward, x, grads)
    leaves = with_leaves(x, *names)
    torch.autograd.backward(checkpointed(**leaves), grads)  # reentrant checkpoints have no torch.autograd.grad
    assert same({name: leaves[name].grad for name in names}, plain)


def test_torch_func_grad(seed: int) -> None:
    x, grads = drawn(CASE, seed)
    wanted = gradients_of(chunked_forward, x, grads)

    def loss(value: Tensor, A: Tensor) -> Tensor:
        out, last = chunked_forward(**x | {"value": value, "key": A})
        return (out * grads[0]).sum() + (last * grads[1]).sum()

    found = torch.func.grad(loss, argnums=(0, 1))(x["value"], x["key"])
    assert torch.equal(found[0], wanted["value"]) and torch.equal(found[1], wanted["key"])


def test_autocast_changes_nothing(seed: int) -> None:
    x, grads = drawn(replace(CASE, options=RAW), seed)
    wanted, plain = gradients_of(chunked_forward, x, grads), chunked_forward(**x)
    with torch.autocast("cpu", torch.bfloat16):
        assert same(gradients_of(chunked_forward, x, grads), wanted)
        assert all(torch.equal(a, b) for a, b in zip(chunked_forward(**with_leaves(x, "key")), plain, strict=True))


def test_bf16_rows_of_autocast_beside_fp32_parameters(seed: int) -> None:
    x, grads = drawn(replace(CASE, options=RAW), seed, torch.bfloat16)
    x |= {name: x[name].float() for name in ("beta", "gate")}
    found = gradients_of(chunked_forward, x, grads)
    assert {name: g.dtype for name, g in found.items()} == {name: x[name].dtype for name in found}


# ---- Refused


def refused(x: dict[str, Any], argument: str, expected: str, error: type[Exception] = ValueError) -> None:
    before = {name: y.detach().clone() for name, y in x.items() if isinstance(y, Tensor)}
    with pytest.raises(error, match=re.escape(f"chunked_forward: {argument}: expected {expected}")):
        chunked_forward(**x)
    assert all(torch.equal(x[name].detach(), y) for name, y in before.items())


def test_what_is_written_is_refused(seed: int) -> None:
    x = with_leaves(drawn(CASE, seed)[0], "value")
    heads, dv, dk = x["state"].shape[1:]
    slots, rows = torch.tensor([1, 0]), torch.zeros(2, heads, dv, dk)
    absent = "None where an input requires a gradient, got a tensor"
    for argument, more in {
        "state_indices": {"state_indices": slots},
        "write_indices": {"write_indices": slots},
        "final_state": {"final_state": rows},
        "checkpoints": {"checkpoints": rows, "checkpoint_every": 64},
        "states_before": {"states_before": rows, "checkpoint_every": 64},
        "out": {"out": torch.zeros_like(x["value"]).detach()},
    }.items():
        refused(x | more, argument, absent)
        if argument != "write_indices":
            with torch.no_grad():
                chunked_forward(**x | more)
    refused(x | {"checkpoint_every": 64}, "checkpoint_every", "0 where an input requires a gradient, got 64")
    refused(x | {"update_state": False}, "update_state", "True without state_indices, got False")


@pytest.mark.parametrize("name", LEAVES)
def test_any_input_may_be_the_one_that_requires_a_gradient(name: str, seed: int) -> None:
    """And any of them makes a call that writes refused."""
    x, grads = drawn(replace(CASE, options=RAW), seed)
    leaves = with_leaves(x, name)
    torch.autograd.backward(chunked_forward(**leaves), grads)
    assert torch.equal(leaves[name].grad, gradients_of(chunked_forward, x, grads)[name])
    refused(leaves | {"out": torch.zeros_like(x["value"])}, "out", "None where an input requires a gradient")


BAD = {
    "query": [lambda y: None, lambda y: y.long(), lambda y: y[0], lambda y: y[..., :3], lambda y: y.to("meta")],
    "key": [lambda y: None, lambda y: y.half(), lambda y: y[:, :-1], lambda y: y[:, :, :1], lambda y: 3],
    "value": [lambda y: None, lambda y: y[..., :3, :], lambda y: y[:, :-1], lambda y: "value"],
    "beta": [lambda y: y.bool(), lambda y: y[..., :1], lambda y: 1.0],
    "gate": [lambda y: y.int(), lambda y: y[:1], lambda y: 0],
    "state": [lambda y: y[:1], lambda y: y[:, :1], lambda y: y.mT, lambda y: y.long(), lambda y: 0],
    "A_log": [lambda y: y[:1], lambda y: y.long(), lambda y: 2.0],
    "dt_bias": [lambda y: y[:1], lambda y: y.bool()],
    "has_initial_state": [lambda y: y[:1], lambda y: y.float(), lambda y: y[None], lambda y: True],
    "state_dtype": [lambda y: torch.int32, lambda y: torch.float64, lambda y: "float32"],
    "workspace": [lambda y: -1, lambda y: "a lot", lambda y: 1.5],
    "scale": [lambda y: torch.nan, lambda y: "one"],
    "forward": [lambda y: "fast", lambda y: None, lambda y: 1],
    "cu_seqlens": [lambda y: torch.tensor([0, 70])],
}  # fmt: skip


@pytest.mark.parametrize("name, number", [(name, i) for name, each in BAD.items() for i in range(len(each))])
@pytest.mark.parametrize("grad", [True, False])
def test_bad_arguments(name: str, number: int, grad: bool, seed: int) -> None:
    x, _ = drawn(replace(CASE, options=RAW), seed)
    x["has_initial_state"] = torch.ones(2, dtype=torch.bool)
    if grad:
        x = with_leaves(x, "value" if name != "value" else "query")
    bad = x | {name: BAD[name][number](x.get(name))}
    with pytest.raises(ValueError, match=r"chunked_forward: \w+: expected .+, got ") as caught:
        chunked_forward(**bad)
    named = re.match(r"chunked_forward: (\w+)", str(caught.value)).group(1)  # type: ignore[union-attr]
    assert named in (name, "key", "value", "cu_seqlens") if name in ("query", "cu_seqlens") else named == name


def test_gradients_of_gradients_are_refused(seed: int) -> None:
    x, grads = drawn(CASE, seed)
    leaves = with_leaves(x, "value", "query")
    (found,) = torch.autograd.grad(chunked_forward(**leaves), leaves["value"], grads, create_graph=True)
    with pytest.raises(RuntimeError, match="chunked_forward: gradients of gradients are not computed"):
        found.sum().backward()
    with pytest.raises(RuntimeError, match="chunked_forward: gradients of gradients are not computed"):
        torch.func.grad(lambda v: torch.func.grad(lambda w: chunked_forward(**x | {"value": w})[0].sum())(v).sum())(x["value"])


def test_forward_mode_is_refused(seed: int) -> None:
    x, _ = drawn(CASE, seed)

    def function(value: Tensor) -> Tensor:
        return chunked_forward(**x | {"value": value})[0]

    with pytest.raises(
        (RuntimeError, ValueError), match=r"chunked_forward: (value: expected|forward-mode derivatives are not)"
    ):
        torch.func.jvp(function, (x["value"],), (x["value"],))
    value = x["value"].clone().requires_grad_()
    with torch.autograd.forward_ad.dual_level(), pytest.raises((RuntimeError, ValueError), match="chunked_forward: "):
        function(torch.autograd.forward_ad.make_dual(value, value.detach()))
    with pytest.raises(RuntimeError, match=r"chunked_forward: torch\.vmap is not supported"):
        torch.func.vmap(torch.func.grad(lambda v: function(v).sum()))(torch.stack([x["value"]] * 2))


@pytest.mark.parametrize("case", [CASE, PACKED])
@pytest.mark.parametrize("names", [("query",), ("value",)])
def test_a_small_workspace(case: GradientCase, names: tuple[str, ...], seed: int) -> None:
    """Fewer heads at a time have the same bits; less than one key head's is refused with what it needs."""
    x, grads = drawn(case, seed)
    wanted = gradients_of(chunked_forward, x, grads)

    def run(workspace: int) -> list[Tensor]:
        leaves = with_leaves(x, *names)
        return list(torch.autograd.grad(chunked_forward(**leaves, workspace=workspace), [leaves[n] for n in names], grads))

    with pytest.raises(ValueError, match=r"chunked_forward: workspace: expected at least \d+ bytes.+, got 8") as caught:
        run(8)
    least = int(re.search(r"at least (\d+)", str(caught.value)).group(1))  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=f"at least {least} bytes"):
        run(least - 1)
    assert all(torch.equal(f, wanted[n]) for n, f in zip(names, run(least), strict=True))
