"""Collectives that are made, what is refused before them, and how far NaN spreads. Ranks are threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradient_cases import GradientCase, drawn
from layer_cases_on_ranks import seeded
from module_cases_on_ranks import MODULES
from parallel_cases import SMALL, SPLITS, compare, expected, on_rank, results
from thread_ranks import ThreadRanks, on_threads, refused
from torch import Tensor

import gdn_cuda
from gdn_cuda import parallel
from gdn_cuda.nn import GatedDeltaNet, KimiDeltaAttention

HEADS, DK, DV = 2, 8, 6


def call(context: parallel.Context, batch: int = 1) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    sizes = {"query": (HEADS, DK), "key": (HEADS, DK), "value": (HEADS, DV), "beta": (HEADS,), "gate": (HEADS,)}
    x = {name: torch.randn(batch, sum(context.lengths), *size, generator=rng) for name, size in sizes.items()}
    x |= {"beta": x["beta"].sigmoid(), "gate": -x["gate"].abs() / 10, "key": torch.nn.functional.normalize(x["key"], dim=-1)}
    return {name: parallel.shard(y, context) for name, y in x.items()}


def trained(context: parallel.Context) -> None:
    x = {name: y.requires_grad_() for name, y in call(context).items()}
    out, last = parallel.chunked_forward(**x, context=context)
    (out.sum() + last.sum()).backward()


@pytest.mark.parametrize(
    ("size", "lengths", "layout", "expected"),
    [
        (1, [100], "zigzag", 0),
        (1, [40, 60], "contiguous", 0),
        (2, [100], "contiguous", 2),
        (4, [100, 20], "zigzag", 2),
        (3, [10, 10, 10], "contiguous", 0),  # no sequence crosses
        (3, [0], "contiguous", 0),
    ],
)
def test_a_layer_makes_one_collective_each_way_or_none(size: int, lengths: list[int], layout: str, expected: int) -> None:
    def run(ranks: ThreadRanks) -> int:
        context = parallel.context(ranks, lengths, layout)
        before = ranks.board.collectives
        ranks.board.barrier.wait()
        trained(context)
        ranks.board.barrier.wait()
        return ranks.board.collectives - before

    assert on_threads(size, run)[0] == [expected] * size


@pytest.mark.parametrize(
    ("size", "lengths", "layout", "maps"),
    [(2, [100], "contiguous", 0), (3, [100], "contiguous", 1), (3, [60, 40], "zigzag", 1), (2, [50, 50], "contiguous", None)],
)
def test_ranks_send_what_explain_says(size: int, lengths: list[int], layout: str, maps: int | None) -> None:
    """States, and maps only where a sequence is on three ranks or more."""

    def run(ranks: ThreadRanks) -> tuple[list[int], parallel.Context]:
        context = parallel.context(ranks, lengths, layout)
        ranks.gathered.clear()
        trained(context)
        return ranks.gathered, context

    for sent, context in on_threads(size, run)[0]:
        state, of_maps = context.slots * HEADS * DV * DK * 4, context.slots * HEADS * DK * DK * 4
        assert sent == ([] if maps is None else [state + maps * of_maps, state])
        said = context.explain(HEADS, DK, DV)
        assert maps is None or f"forward: an all-gather of {(state + maps * of_maps) / 2**20:.2f} MiB" in said


def changed(name: str, change: Any, **options: Any) -> Any:
    return lambda context: parallel.chunked_forward(
        **(x := call(context)) | {name: change(x[name])}, **{"context": context} | options
    )


def state_of(*sizes: int) -> Any:
    return lambda context: parallel.chunked_forward(**call(context), state=torch.zeros(sizes), context=context)


WRONG: list[tuple[Any, str]] = [
    (changed("query", lambda x: x[:, 1:]), "query: expected 10 tokens, those of rank 1 of 2, in dimension 1, got (1, 9, 2, 8)"),
    (changed("gate", lambda x: x[:, 1:]), "gate: expected 10 tokens, those of rank 1 of 2, in dimension 1, got (1, 9, 2)"),
    (changed("value", lambda x: x.to("meta")), "value: expected a tensor on a device for which the group has a backend"),
    (changed("value", lambda x: None), "parallel.chunked_forward: value: expected a tensor, got None"),
    (changed("key", lambda x: x[..., :4]), "chunked_forward: key: expected"),
    (changed("beta", lambda x: x.long()), "chunked_forward: beta: expected"),
    (changed("query", lambda x: x, scale="one"), "chunked_forward: scale: expected a number or None, got 'one'"),
    (changed("query", lambda x: x, context=None), "context: expected one from gdn_cuda.parallel.context, got NoneType"),
    (
        changed("query", lambda x: x, state=torch.zeros(1, HEADS, DV, DK, device="meta")),
        "state: expected a tensor on cpu, got one",
    ),
    (state_of(2, HEADS, DV, DK), "state: expected (1, 2, 6, 8), a state for each sequence, got (2, 2, 6, 8)"),
]


@pytest.mark.parametrize(("function", "message"), WRONG, ids=[message for _, message in WRONG])
def test_chunked_forward_refuses(function: Any, message: str) -> None:
    refused(function, message)


def convolved(x: Any, weight: Any = None, **options: Any) -> Any:
    def run(context: parallel.Context) -> Tensor:
        return parallel.causal_conv1d(
            x(torch.zeros(1, 3, context.tokens)), torch.zeros(3, 4) if weight is None else weight, context=context, **options
        )

    return run


WRONG_CONVOLUTIONS: list[tuple[Any, str]] = [
    (convolved(lambda x: x[..., 1:]), "parallel.causal_conv1d: x: expected 10 tokens, those of rank 1 of 2, in dimension 2"),
    (convolved(lambda x: x, torch.zeros(2, 4)), "causal_conv1d: weight: expected"),
    (convolved(lambda x: x, activation="gelu"), "activation: expected None, 'silu' or 'swish', got 'gelu'"),
    (convolved(lambda x: x, initial_states=torch.zeros(1, 3, 4)), "initial_states: expected (1, 3, 3), a state for each"),
    (
        convolved(lambda x: x, initial_states=torch.zeros(1, 3, 3).double()),
        "initial_states: expected torch.float32, as x, got torch.float64",
    ),
]


@pytest.mark.parametrize(("function", "message"), WRONG_CONVOLUTIONS, ids=[message for _, message in WRONG_CONVOLUTIONS])
def test_causal_conv1d_refuses(function: Any, message: str) -> None:
    refused(function, message)


def scanned(name: str, change: Any, **options: Any) -> Any:
    def run(context: parallel.Context | None) -> Any:
        tokens = 10 if context is None else context.tokens
        x = {name: torch.zeros(1, 3, tokens) for name in ("u", "delta")} | {"A": torch.zeros(3, 2)}
        x |= {name: torch.zeros(1, 2, tokens) for name in "BC"}
        return parallel.selective_scan(**x | {name: change(x[name])}, **options, context=context)

    return run


WRONG_SCANS: list[tuple[Any, str]] = [
    (
        scanned("u", lambda x: x[..., 1:]),
        "parallel.selective_scan: u: expected 10 tokens, those of rank 1 of 2, in dimension 2",
    ),
    (scanned("delta", lambda x: x[..., 1:]), "delta: expected 10 tokens, those of rank 1 of 2, in dimension 2, got (1, 3, 9)"),
    (lambda context: scanned("u", lambda x: x)(None), "parallel.selective_scan: context: expected one from gdn_cuda"),
    (scanned("B", lambda x: x[..., 1:]), "selective_scan: B: expected"),
    (scanned("u", lambda x: x, discretization="euler"), "selective_scan: discretization: expected"),
    (scanned("u", lambda x: x, initial_state=torch.zeros(2, 3, 2)), "initial_state: expected (1, 3, 2), a state for each"),
]


@pytest.mark.parametrize(("function", "message"), WRONG_SCANS, ids=[message for _, message in WRONG_SCANS])
def test_selective_scan_refuses(function: Any, message: str) -> None:
    refused(function, message)


def zeros(*sizes: int) -> Any:
    return lambda context: torch.zeros(*(context.tokens if n == -1 else n for n in sizes))


@pytest.mark.parametrize(
    ("name", "x", "message"),
    [
        ("shard", zeros(1, 20, 2), "x: expected all 21 tokens in dimension 1, got (1, 20, 2)"),
        ("unshard", zeros(1, 21, 2), "x: expected 10 tokens, those of rank 1 of 2, in dimension 1, got (1, 21, 2)"),
        ("to_heads", zeros(1, -1, 3), "x: expected a multiple of 2 heads in dimension 2, got (1, 10, 3)"),
        ("from_heads", zeros(1, -1, 2), "x: expected all 21 tokens in dimension 1, got (1, 10, 2)"),
        ("from_heads", zeros(1, 21), "x: expected heads in dimension 2, got (1, 21)"),
    ],
)
def test_moved_tokens_are_refused(name: str, x: Any, message: str) -> None:
    refused(lambda context: getattr(parallel, name)(x(context), context), f"parallel.{name}: {message}")


@pytest.mark.parametrize("name", ["shard", "unshard", "to_heads", "from_heads"])
def test_a_dimension_from_the_end_and_another_context_are_refused(name: str) -> None:
    x = zeros(1, 21, 2) if name in ("shard", "from_heads") else zeros(1, -1, 2)
    refused(
        lambda context: getattr(parallel, name)(x(context), context, -2), "dim: expected a dimension counted from the first"
    )
    message = f"parallel.{name}: context: expected one from gdn_cuda.parallel.context, got list"
    refused(lambda context: getattr(parallel, name)(x(context), [21]), message)


@pytest.mark.parametrize("kind", [GatedDeltaNet, KimiDeltaAttention])
def test_a_layer_refuses_what_a_context_replaces(kind: Any) -> None:
    layer, name = kind(8, (1, 1), 8, 8), kind.__name__

    def run(**options: Any) -> Any:
        return lambda context: layer(torch.zeros(1, options.pop("tokens", 10), 8), context=context, **options)

    refused(run(cu_seqlens=torch.tensor([0, 10])), f"{name}: cu_seqlens: expected None with a context, got Tensor")
    refused(run(state=layer.new_state(1)), f"{name}: state: expected None with a context, got {name}State")
    wrong = f"{name}: context: expected one from gdn_cuda.parallel.context, got list"
    refused(lambda context: layer(torch.zeros(1, 10, 8), context=[21]), wrong)
    refused(run(tokens=9), f"{name}: x: expected 10 tokens, those of rank 1 of 2, in dimension 1, got (1, 9, 8)")


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("Kimi")])
def test_modules_refuse_states_and_other_tokens(name: str) -> None:
    make, channels = MODULES[name]
    layer, function = make(), name.partition(",")[0].replace("RG-LRU", "RGLRU").replace("Hyena", "HyenaCascade")

    def run(tokens: int = 10, **options: Any) -> Any:
        u = torch.zeros(1, tokens, channels, dtype=torch.float64)
        return lambda context: layer(u, **{"context": context} | options)

    returns = "return_state" if function in ("HyenaCascade", "ShortConv") else "return_last_state"
    refused(run(state=torch.zeros(1)), f"{function}: state: expected None with a context, got Tensor")
    refused(run(**{returns: True}), f"{function}: {returns}: expected False with a context, got True")
    refused(run(9), f"{function}: u: expected 10 tokens, those of rank 1 of 2, in dimension 1, got (1, 9, {channels})")
    refused(run(context=[21]), f"{function}: context: expected one from gdn_cuda.parallel.context, got list")


def test_a_batch_of_several_sequences_is_refused() -> None:
    def run(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, [5, 6])
        with pytest.raises(ValueError, match="query: expected a batch of 1 with 2 sequences, got"):
            parallel.chunked_forward(**call(context, batch=2), context=context)
        with pytest.raises(ValueError, match="x: expected a batch of 1 with 2 sequences, got"):
            parallel.causal_conv1d(torch.zeros(2, 3, context.tokens), torch.zeros(3, 4), context=context)

    on_threads(2, run)


def test_gradients_of_gradients_are_refused() -> None:
    context = parallel.context(ThreadRanks(None, 0, 1), [20])
    x = {name: y.requires_grad_() for name, y in call(context).items()}
    out, _ = parallel.chunked_forward(**x, context=context)
    grad = torch.ones_like(out).requires_grad_()
    (found,) = torch.autograd.grad(out, x["query"], grad, create_graph=True)
    with pytest.raises(RuntimeError, match="gradients of gradients are not computed"):
        found.sum().backward()


# ---- NaN


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_stays_in_its_sequence_and_head_and_ends_at_a_reset(bad: float, reset: bool) -> None:
    """Token 3 of the second sequence, which has tokens 10 to 89 on four ranks, is bad in head 1; token 50 may be a reset."""

    def run(ranks: ThreadRanks) -> Tensor:
        context = parallel.context(ranks, [10, 80, 10])
        whole = call(parallel.context(ThreadRanks(None, 0, 1), [10, 80, 10]))
        whole["value"][0, 13, 1] = bad
        if reset:
            whole["gate"][0, 50, 1] = -torch.inf
        out, _ = parallel.chunked_forward(**{name: parallel.shard(x, context) for name, x in whole.items()}, context=context)
        return parallel.unshard(out, context)

    finite = on_threads(4, run)[0][0].isfinite().all(-1)[0]
    assert finite[:, 0].all() and finite[:13, 1].all() and finite[90:, 1].all()
    assert not finite[13:50, 1].any() and bool(finite[50:90, 1].all()) == reset


def test_a_gradient_of_nan_ends_at_a_reset() -> None:
    """That of token 75's output, which is on the last of four ranks, spreads to earlier tokens up to the reset at token 45, and
    in that token's chunk, which begins with token 40."""

    def run(ranks: ThreadRanks) -> Tensor:
        context = parallel.context(ranks, [80])
        whole = call(parallel.context(ThreadRanks(None, 0, 1), [80]))
        whole["gate"][0, 45] = -torch.inf
        x = {name: parallel.shard(y, context).requires_grad_() for name, y in whole.items()}
        out, _ = parallel.chunked_forward(**x, context=context)
        grad = torch.ones(1, 80, HEADS, DV)
        grad[0, 75, 1] = torch.nan
        (found,) = torch.autograd.grad(out, x["value"], parallel.shard(grad, context))
        return parallel.unshard(found, context)

    finite = on_threads(4, run)[0][0].isfinite().all(-1)[0]
    assert finite[:, 0].all() and finite[:40, 1].all() and not finite[45:76, 1].any()


# ---- Checkpointing, inference


def test_a_layer_that_is_computed_again_for_the_backward() -> None:
    layer = GatedDeltaNet(8, (1, 2), 8, 8)

    def run(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, [50, 30])
        x = torch.randn(1, context.tokens, 8, generator=torch.Generator().manual_seed(ranks.rank))
        found = []
        for again in (False, True):
            leaf = x.clone().requires_grad_()
            y = (
                torch.utils.checkpoint.checkpoint(layer, leaf, context=context, use_reentrant=False, preserve_rng_state=False)
                if again
                else layer(leaf, context=context)
            )
            found.append(torch.autograd.grad(y.square().sum(), leaf)[0])
        assert torch.equal(*found)

    on_threads(3, run)


def test_compiled_code_runs_what_is_between_the_projections_as_it_is() -> None:
    layer = GatedDeltaNet(8, (1, 2), 8, 8)
    context = parallel.context(ThreadRanks(None, 0, 1), [20, 30], fragments=[[(10, 50), (0, 10)]])
    x = torch.randn(1, 50, 8, generator=torch.Generator().manual_seed(0))
    leaf, other = (x.clone().requires_grad_() for _ in range(2))
    layer(leaf, context=context).square().sum().backward()
    torch.compile(layer, backend="aot_eager")(other, context=context).square().sum().backward()
    torch.testing.assert_close(other.grad, leaf.grad)


def test_a_call_without_gradients_has_the_results_of_one_with() -> None:
    def run(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, [50, 30], "zigzag")
        x = call(context)
        with torch.no_grad():
            plain = parallel.chunked_forward(**x, context=context)
        recorded = parallel.chunked_forward(**{name: y.requires_grad_() for name, y in x.items()}, context=context)
        assert all(torch.equal(*pair) for pair in zip(plain, recorded, strict=True))
        assert not plain[0].requires_grad and recorded[0].requires_grad
        for leaves in ({name: y.detach() for name, y in x.items()}, x):
            out, last = parallel.chunked_forward(**leaves, context=context, output_final_state=False)
            assert last is None and torch.equal(out, plain[0])

    on_threads(2, run)


def test_a_context_that_inference_has_used_first_serves_training() -> None:
    """Its tensors are made at first use, and some are saved for the backward."""

    def run(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, [3, 0, 4, 30, 5, 2], fragments=[[(20, 44), (0, 10)], [(10, 20)]])
        x = call(context)
        scan = {name: torch.ones(1, 3, context.tokens) for name in ("u", "delta")} | {"A": -torch.ones(3, 2)}
        scan |= {name: torch.ones(1, 2, context.tokens) for name in "BC"}
        with torch.inference_mode():
            parallel.chunked_forward(**x, context=context, broadcast_final_state=True)
            parallel.causal_conv1d(scan["u"], torch.ones(3, 4), context=context)
            parallel.selective_scan(**scan, context=context)
            parallel.to_heads(parallel.unshard(x["query"], context)[:, : context.tokens], context)
        out, last = parallel.chunked_forward(
            **{name: y.requires_grad_() for name, y in x.items()}, context=context, broadcast_final_state=True
        )
        y = parallel.causal_conv1d(scan["u"].requires_grad_(), torch.ones(3, 4), context=context)
        parts = [out, last, y, parallel.selective_scan(**scan, context=context), parallel.unshard(x["query"], context)]
        sum(part.sum() for part in parts).backward()
        assert all(y.grad is not None and y.grad.isfinite().all() for y in (*x.values(), scan["u"]))

    on_threads(2, run)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_results_and_gradients_have_the_dtypes_of_one_process(dtype: torch.dtype, bound: float) -> None:
    """Rows in `dtype`, gates and states in fp32; two roundings to `dtype`, or chunks that begin elsewhere."""
    case = GradientCase(lengths=(90, 0, 50), gates=0.1, **SMALL)
    x, grads = drawn(case, 0, dtype)
    wanted = results(gdn_cuda.chunked_forward, x, grads)

    def run(ranks: ThreadRanks) -> None:
        found, context = on_rank(ranks, SPLITS[1], case, x, grads)
        compare(found, expected(context, case, wanted), f"rank {ranks.rank}, {dtype}", bound)

    on_threads(3, run)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_modules_have_the_dtypes_of_one_process(name: str, dtype: torch.dtype, bound: float) -> None:
    make, channels = MODULES[name]
    layer = seeded(make).to(dtype)
    x = torch.randn(1, 90, channels, generator=torch.Generator().manual_seed(0)).to(dtype)
    leaf = x.clone().requires_grad_()
    wanted = layer(leaf)
    (wanted_grad,) = torch.autograd.grad(wanted.float().square().sum(), leaf)

    def run(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, [90])
        mine = parallel.shard(x, context).requires_grad_()
        y = layer(mine, context=context)
        (grad,) = torch.autograd.grad(y.float().square().sum(), mine)
        pairs = {"y": (wanted.detach(), y.detach()), "grad": (wanted_grad, grad)}
        parts = {key: (parallel.shard(whole, context), whole) for key, (whole, _) in pairs.items()}
        compare({key: own for key, (_, own) in pairs.items()}, parts, f"{name}, rank {ranks.rank}", bound)

    on_threads(3, run)


def test_queries_with_more_heads_than_values() -> None:
    """Heads 0 and 1 of queries, gates and outputs belong to head 0 of keys and values, and so on."""
    rng = torch.Generator().manual_seed(0)
    x = {
        name: torch.randn(1, 90, *size, generator=rng, dtype=torch.float64)
        for name, size in {"query": (4, DK), "key": (2, DK), "value": (2, DV), "beta": (4,), "gate": (4,)}.items()
    }
    x |= {"beta": x["beta"].sigmoid(), "gate": -x["gate"].abs(), "key": torch.nn.functional.normalize(x["key"], dim=-1)}
    leaves = {name: y.clone().requires_grad_() for name, y in x.items()}
    expected, last, _ = gdn_cuda.reference.chunked_forward(**leaves)
    wanted = torch.autograd.grad(expected.sum() + last.sum(), list(leaves.values()))

    def run(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, [90])
        mine = {name: parallel.shard(y, context).requires_grad_() for name, y in x.items()}
        out, last = parallel.chunked_forward(**mine, context=context)
        torch.testing.assert_close(out, parallel.shard(expected, context), rtol=1e-12, atol=1e-12)
        found = torch.autograd.grad(out.sum() + last.sum(), list(mine.values()))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, parallel.shard(other, context), rtol=1e-11, atol=1e-11)

    on_threads(3, run)
