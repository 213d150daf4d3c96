"""Mamba-2's scan over ranks, which are threads: what is sent, dtypes, paths without kernels, NaN, and what is refused."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gradient_cases import error
from layer_cases_on_ranks import drawn
from ssd_cases_on_ranks import IN_TIME, RAW, check_ssd, run, ssd_inputs, ssd_scans
from thread_ranks import ThreadRanks, on_threads, refused
from torch import Tensor

import gdn_cuda
from gdn_cuda import parallel
from gdn_cuda.nn import Mamba2
from gdn_cuda.ssd import parts, scan
from gdn_cuda.ssd.parts import state_gradient_before

H, P, N = 4, 3, 5  # of ssd_inputs


def test_ten_ranks_have_the_results_of_one() -> None:
    """In chains of ten slices and of twenty."""

    def of_rank(ranks: ThreadRanks) -> None:
        for case in ssd_scans():
            check_ssd(ranks, *case)

    on_threads(10, of_rank)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (scan, parts):
        monkeypatch.setattr(module, "has_kernel", lambda *call, **options: False)


def test_ranks_without_kernels_have_the_results_of_one(without_kernels: None) -> None:
    def of_rank(ranks: ThreadRanks) -> None:
        for case in ssd_scans():
            if "resets" not in case:  # 0 times infinity
                check_ssd(ranks, *case)

    on_threads(3, of_rank)


def trained(context: parallel.Context, **options: Any) -> None:
    lengths = context.lengths
    x = ssd_inputs(lengths, 1, "slow")
    mine = {name: parallel.shard(y, context) if name in IN_TIME else y for name, y in x.items()}
    run(parallel.ssd_scan, mine, [mine["x"], x["initial_state"]], context=context, **options)


@pytest.mark.parametrize(
    ("size", "lengths", "layout", "maps"),
    [(2, [100], "contiguous", 0), (3, [100], "contiguous", 1), (3, [60, 40], "zigzag", 1), (2, [50, 50], "contiguous", None)],
)
def test_ranks_send_a_state_and_a_number_a_head_each_way(size: int, lengths: list[int], layout: str, maps: int | None) -> None:
    """The numbers only where a sequence is on three ranks or more, and nothing where none crosses."""

    def of_rank(ranks: ThreadRanks) -> tuple[list[int], parallel.Context]:
        context = parallel.context(ranks, lengths, layout)
        ranks.gathered.clear()
        trained(context)
        return ranks.gathered, context

    for sent, context in on_threads(size, of_rank)[0]:
        assert sent == ([] if maps is None else [context.slots * H * (P * N + maps) * 8] * 2)


BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_results_and_gradients_have_the_dtypes_and_precision_of_one_process(dtype: torch.dtype, gated: bool) -> None:
    """Tokens in `dtype`, parameters and states too; roundings to it, of results and of what is sent backward."""
    whole = ssd_inputs((90, 0, 50), 1, "slow")
    x = {name: y.to(torch.float32 if name in ("A", "dt") else dtype) for name, y in whole.items() if gated or name != "z"}
    grads = [drawn(*x["x"].shape, seed=30).to(dtype), whole["initial_state"].flip(-1).float()]
    offsets = torch.tensor([0, 90, 90, 140])
    options: dict[str, Any] = {"dt_softplus": True}
    wide = {name: y.double() for name, y in x.items()}
    wanted = run(gdn_cuda.ssd_scan, wide, [g.double() for g in grads], cu_seqlens=offsets, **options)

    def of_rank(ranks: ThreadRanks) -> dict[str, Tensor]:
        context = parallel.context(ranks, [90, 0, 50])
        mine = {name: parallel.shard(y, context) if name in IN_TIME else y for name, y in x.items()}
        found = run(parallel.ssd_scan, mine, [parallel.shard(grads[0], context), grads[1]], context=context, **options)
        for name, y in found.items():
            assert y.dtype == (torch.float32 if name == "last" else dtype if name == "out" else x[name].dtype), name
        return found

    every = on_threads(3, of_rank)[0]
    for name, y in wanted.items():
        own = [found[name].double() for found in every]
        found = torch.cat(own, 1) if name in (*IN_TIME, "out") else torch.stack(own).sum(0)
        assert error(found, y) <= BOUNDS[dtype], name


# ---- The gradient of the state before a part


@pytest.mark.parametrize("delta", [0.0, 1e-30, -0.3, 0.7, math.inf], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_the_gradient_of_the_state_before_a_part_with_steps_of(delta: float, dtype: torch.dtype) -> None:
    """Every third step is `delta`. Infinity is a reset, after which nothing of the gradient is left."""
    x = {name: y for name, y in ssd_inputs((70,), 2, "slow").items() if name not in ("dt_bias", "D", "initial_state")}
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = {name: y.to(dtype if name in ("x", "B", "C", "z") else wide) for name, y in x.items()}
    x["dt"] = x["dt"].abs() / 4
    x["dt"][:, 7::3] = delta
    state = torch.zeros(2, H, P, N, dtype=wide, requires_grad=True)
    out_gradient, last_gradient = x["z"].flip(-1), drawn(2, H, P, N, seed=1).to(wide)
    every = x | {"dt": x["dt"].clamp(max=1e30)}  # a decay of 0 too, and finite gradients
    if delta == math.inf:
        every["x"] = x["x"].clone()
        every["x"][:, 7::3] = 0  # or the state after it would be huge
    y, last = gdn_cuda.ssd_scan(**every, initial_state=state, dt_limit=(-math.inf, math.inf), return_last_state=True)
    (wanted,) = torch.autograd.grad((y, last), state, (out_gradient, last_gradient))
    absent = dict.fromkeys(("D", "dt_bias", "cu_seqlens", "seq_idx", "has_initial_state", "initial_state"))
    flags = {"dt_softplus": False, "dt_lowest": -math.inf, "dt_highest": math.inf, "deterministic": False}
    found, decay = state_gradient_before(SimpleNamespace(**x | absent | flags), out_gradient, last_gradient)
    assert error(found, wanted.double()) <= (1e-12 if dtype == torch.float64 else 1e-3)
    expected = (every["dt"].double() * x["A"].double()).clamp(min=-1000).sum(1).exp()
    torch.testing.assert_close(decay.double(), expected, rtol=1e-5, atol=0)


# ---- NaN


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("reset", [False, True])
def test_nan_stays_in_its_sequence_and_head_and_ends_at_a_reset(bad: float, reset: bool) -> None:
    """Token 3 of the second sequence, which has tokens 10 to 89 on four ranks, is bad in head 1; token 50 may be a reset, on a
    rank that neither begins the sequence nor ends it. NaN spreads to all of a chunk that it is in or comes to."""

    def of_rank(ranks: ThreadRanks) -> Tensor:
        context = parallel.context(ranks, [10, 80, 10])
        whole = {name: y for name, y in ssd_inputs((10, 80, 10), 1, "slow").items() if name not in ("initial_state", "dt_bias")}
        whole["dt"] = whole["dt"].abs()
        whole["x"][0, 13, 1] = bad
        if reset:
            whole["dt"][0, 50, 1] = 1e6
        mine = {name: parallel.shard(y, context) if name in IN_TIME else y for name, y in whole.items()}
        return parallel.unshard(parallel.ssd_scan(**mine, context=context), context)

    finite = on_threads(4, of_rank)[0][0].isfinite().all(-1)[0]
    assert finite[:, [0, 2, 3]].all() and finite[:10, 1].all() and finite[90:, 1].all()
    assert not finite[13:50, 1].any() and bool(finite[75:90, 1].all()) == reset


@pytest.mark.parametrize("reset", [False, True])
def test_a_gradient_of_nan_ends_at_a_reset(reset: bool) -> None:
    """That of token 75's output, on the last of four ranks, spreads to earlier tokens of its head up to a reset at token 45."""

    def of_rank(ranks: ThreadRanks) -> Tensor:
        context = parallel.context(ranks, [80])
        whole = {name: y for name, y in ssd_inputs((80,), 1, "slow").items() if name != "dt_bias"}
        whole["dt"] = whole["dt"].abs()
        if reset:
            whole["dt"][0, 45] = 1e6
        mine = {name: parallel.shard(y, context) if name in IN_TIME else y for name, y in whole.items()}
        leaf = mine["x"].requires_grad_()
        out = parallel.ssd_scan(**mine, context=context)
        grad = torch.ones(1, 80, H, P, dtype=out.dtype)
        grad[0, 75, 1] = torch.nan
        (found,) = torch.autograd.grad(out, leaf, parallel.shard(grad, context))
        return parallel.unshard(found, context)

    finite = on_threads(4, of_rank)[0][0].isfinite().all(-1)[0]
    assert finite[:, [0, 2, 3]].all() and not finite[60:76, 1].any() and bool(finite[:40, 1].all()) == reset


# ---- What is refused


def changed(name: str, change: Any, **options: Any) -> Any:
    def call(context: parallel.Context) -> Any:
        x = {name: y for name, y in ssd_inputs((10,), 1, "slow").items() if name != "initial_state"}
        return parallel.ssd_scan(**x | {name: change(x[name])} | {"context": context} | options)

    return call


WRONG: list[tuple[Any, str]] = [
    (changed("x", lambda x: x[:, 1:]), "parallel.ssd_scan: x: expected 10 tokens, those of rank 1 of 2, in dimension 1, got"),
    (changed("z", lambda x: x[:, 1:]), "parallel.ssd_scan: z: expected 10 tokens, those of rank 1 of 2, in dimension 1, got"),
    (changed("dt", lambda x: None), "parallel.ssd_scan: dt: expected a tensor, got None"),
    (
        changed("x", lambda x: x.to("meta")),
        "x: expected a tensor on a device for which the group has a backend",
    ),
    (changed("B", lambda x: x[:, :, :, 1:]), "ssd_scan: C: expected"),
    (changed("A", lambda x: x[1:]), "ssd_scan: A: expected"),
    (changed("D", lambda x: x.long()), "ssd_scan: D: expected"),
    (changed("x", lambda x: x, dt_limit=(1.0, 0.5)), "ssd_scan: dt_limit: expected a lower bound that is not above"),
    (changed("x", lambda x: x, dt_softplus="yes"), "ssd_scan: dt_softplus: expected"),
    (changed("x", lambda x: x, seq_idx=torch.zeros(1, 10).int()), "ssd_scan: seq_idx: expected None, as the context has the"),
    (
        changed("x", lambda x: x, context=None),
        "parallel.ssd_scan: context: expected one from gdn_cuda",
    ),
    (
        changed("x", lambda x: x, initial_state=torch.zeros(2, H, P, N)),
        "initial_state: expected (1, 4, 3, 5), a state",
    ),
    (changed("x", lambda x: x, initial_state=torch.zeros(1, H, P, N).long()), "initial_state: expected floating point, got"),
]


@pytest.mark.parametrize(("function", "message"), WRONG, ids=[message for _, message in WRONG])
def test_ssd_scan_refuses(function: Any, message: str) -> None:
    refused(function, message)


def test_a_layer_refuses_numbers_of_sequences() -> None:
    layer, numbers = Mamba2(8, 3, headdim=4), torch.zeros(1, 10).int()
    refused(
        lambda context: layer(torch.zeros(1, 10, 8), seq_idx=numbers, context=context),
        "Mamba2: seq_idx: expected None with a context, got Tensor",
    )


def test_a_batch_of_several_sequences_is_refused() -> None:
    def of_rank(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, [5, 6])
        x = {name: parallel.shard(y, context) if name in IN_TIME else y for name, y in ssd_inputs((11,), 2, "slow").items()}
        with pytest.raises(ValueError, match="ssd_scan: x: expected a batch of 1 with 2 sequences, got"):
            parallel.ssd_scan(**x | {"initial_state": None}, context=context)

    on_threads(2, of_rank)


def test_no_tokens_at_all() -> None:
    """Last states are the initial ones, on rank 0, and so are their gradients."""

    def of_rank(ranks: ThreadRanks) -> None:
        context, x = parallel.context(ranks, [0, 0]), ssd_inputs((0, 0), 1, "slow")
        found = run(parallel.ssd_scan, x, [x["x"], x["initial_state"].flip(-1)], context=context, **dict(RAW))
        mine = ranks.rank == 0
        assert torch.equal(found["last"], x["initial_state"] * mine)
        assert torch.equal(found["initial_state"], x["initial_state"].flip(-1) * mine)
        assert all(float(found[name].abs().sum()) == 0 for name in x.keys() - {"initial_state"})

    on_threads(2, of_rank)


def test_a_context_that_inference_has_used_first_serves_training() -> None:
    context = parallel.context(ThreadRanks(None, 0, 1), [3, 0, 4], fragments=[[(3, 7), (0, 3)]])
    with torch.inference_mode():
        trained_inputs = ssd_inputs((3, 0, 4), 1, "slow")
        parallel.ssd_scan(**trained_inputs, context=context)
    trained(context)


@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_of_any_strides_and_states_of_models_sizes(batch: int) -> None:
    """Gradients are of one element each, as after a sum, or have tokens last. States of 64 × 128 are read in pairs, and are
    received beside a number."""
    rng = torch.Generator().manual_seed(0)
    sizes = {"x": (batch, 90, 2, 64), "dt": (batch, 90, 2), "B": (batch, 90, 1, 128), "C": (batch, 90, 1, 128)}
    x = {name: torch.randn(size, generator=rng) for name, size in sizes.items()}
    x |= {"A": -torch.rand(2, generator=rng), "initial_state": torch.randn(batch, 2, 64, 128, generator=rng)}
    grads = [torch.randn(batch, 2, 64, 90, generator=rng).movedim(-1, 1), torch.ones(()).expand(batch, 2, 64, 128)]
    wanted = run(gdn_cuda.ssd_scan, x, grads, dt_softplus=True)

    def of_rank(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, [90])
        mine = {name: parallel.shard(y, context) if name in IN_TIME else y for name, y in x.items()}
        found = run(parallel.ssd_scan, mine, [parallel.shard(grads[0], context), grads[1]], context=context, dt_softplus=True)
        for name in ("out", *mine.keys() & {*IN_TIME}):
            assert error(found[name], parallel.shard(wanted[name], context).double()) < 1e-5, name

    on_threads(3, of_rank)


def test_compiled_code_runs_it_as_it_is() -> None:
    context = parallel.context(ThreadRanks(None, 0, 1), [20, 30], fragments=[[(10, 50), (0, 10)]])
    x = ssd_inputs((20, 30), 1, "slow")
    wanted = parallel.ssd_scan(**x, context=context).sin()
    found = torch.compile(lambda **given: parallel.ssd_scan(**given).sin(), backend="aot_eager")(**x, context=context)
    assert torch.equal(found, wanted)
