"""The GDN operators on random layouts, sizes, indices, devices and threads.

The draws are the same in every run. Expected results are computed independently: overlap from sets of addresses, values by the
reference on contiguous copies, refusals of meta and fake calls by a CPU call.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from gdn_cases import CASES, MESSAGE, arguments_of
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cases import copied, operator_call
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

import gdn_cuda
from gdn_cuda.operators.examples import Arguments, random
from gdn_cuda.operators.registration import check


def drawn(examples: int) -> Any:
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None)


# ---- layouts


def layouts(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[int, tuple[int, ...]]]:
    """(offset, strides)"""
    return st.tuples(st.integers(0, 30), st.tuples(*(st.integers(0, 9) for _ in shape)))


def addresses(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    indices = itertools.product(*(range(size) for size in shape))
    return [offset + sum(i * stride for i, stride in zip(index, strides, strict=True)) for index in indices]


@st.composite
def two_layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], Any, Any]:
    shape = draw(st.tuples(*(st.integers(0, 3) for _ in range(3))))
    return shape, draw(layouts(shape)), draw(layouts(shape))


@drawn(300)
@given(two_layouts())
def test_a_call_is_refused_exactly_where_addresses_overlap(drawn: Any) -> None:
    shape, read, written = drawn
    memory = random(128, seed=1)
    x, out = (memory.as_strided(shape, strides, offset) for offset, strides in (read, written))
    mine, others = (addresses(offset, shape, strides) for offset, strides in (written, read))
    overlaps = len(set(mine)) != len(mine) or bool(set(mine) & set(others))
    before, expected = memory.clone(), gdn_cuda.reference.chunk_local_cumsum(x.clone())
    if overlaps:
        with pytest.raises(ValueError, match="chunk_local_cumsum_bf16: output: expected memory"):
            gdn_cuda.chunk_local_cumsum_bf16(x, out, *shape)
        assert torch.equal(memory, before)
    else:
        gdn_cuda.chunk_local_cumsum_bf16(x, out, *shape)
        assert torch.equal(out, expected)
        out.copy_(before.as_strided(shape, written[1], written[0]))
        assert torch.equal(memory, before)


@st.composite
def tensors_of_a_decode(draw: st.DrawFn) -> Arguments:
    """Arguments of fused_decode, some of them expanded, some sizes 0 or 1."""
    B, T = draw(st.sampled_from([0, 1, 1, 2, 3])), draw(st.sampled_from([0, 1, 1, 2]))
    heads = draw(st.sampled_from([(1, 1), (1, 2), (2, 2)]))
    seed = draw(st.integers(0, 99))

    def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        expanded = [draw(st.booleans()) and i + 1 < len(shape) for i in range(len(shape))]
        kept = [1 if each and size else size for each, size in zip(expanded, shape, strict=True)]
        return random(*kept, seed=seed + len(shape), dtype=dtype).expand(shape)

    return {
        "query": tensor(B, T, heads[0], 8),
        "key": tensor(B, T, heads[0], 8),
        "value": tensor(B, T, heads[1], 8),
        "a": tensor(B, T, heads[1]),
        "b": tensor(B, T, heads[1]),
        "A_log": random(heads[1], seed=seed),
        "dt_bias": random(heads[1], seed=seed),
        "state_pool": random(B + 1, heads[1], 8, 8, seed=seed),
    }


@drawn(60)
@given(tensors_of_a_decode())
def test_expanded_and_empty_tensors_give_the_results_of_their_copies(x: Arguments) -> None:
    copies = {name: each.clone(memory_format=torch.contiguous_format) for name, each in x.items()}
    assert torch.equal(gdn_cuda.fused_decode(**x), gdn_cuda.fused_decode(**copies))
    assert torch.equal(x["state_pool"], copies["state_pool"])


# ---- meta and fake tensors

SHAPES = sorted(set(CASES) - {"chunked-no-state", "gating-fp32-dense"})
VALUES = (
    "cu_seqlens: expected offsets",
    "memory that does not overlap",
    "which overlaps itself",
)  # errors that only real tensors raise


def answer(case: Any, arguments: Arguments) -> str:
    try:
        case.function(**arguments)
    except (ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


@st.composite
def changed_calls(draw: st.DrawFn) -> tuple[str, Arguments]:
    name = draw(st.sampled_from(SHAPES))
    arguments = arguments_of(CASES[name])
    argument = draw(st.sampled_from(sorted(n for n, x in arguments.items() if isinstance(x, Tensor))))
    x = copied(arguments[argument])
    change = draw(st.sampled_from(["size", "rank", "dtype", "stride"]))
    if change == "size" and x.dim():
        dim, size = draw(st.integers(0, x.dim() - 1)), draw(st.sampled_from([0, 1, 2, 5, 64]))
        x = torch.zeros([size if d == dim else n for d, n in enumerate(x.shape)], dtype=x.dtype)
    elif change == "rank":
        x = x[None] if draw(st.booleans()) else x.flatten()
    elif change == "dtype":
        x = x.to(draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64])))
    elif x.dim():
        x = torch.stack([x, x], -1)[..., 0]
    return name, arguments | {argument: x}


@drawn(100)
@given(changed_calls())
def test_meta_and_fake_tensors_are_refused_like_real_ones(call: Any) -> None:
    name, arguments = call
    case = CASES[name]
    on_meta = {n: x.to("meta") if isinstance(x, Tensor) else x for n, x in arguments.items()}
    on_meta = {
        n: torch.empty_strided(x.shape, arguments[n].stride(), dtype=x.dtype, device="meta") if isinstance(x, Tensor) else x
        for n, x in on_meta.items()
    }
    with FakeTensorMode() as mode:
        faked = {n: mode.from_tensor(x) if isinstance(x, Tensor) else x for n, x in arguments.items()}
        fake = answer(case, faked)
    meta = answer(case, on_meta)
    real = answer(case, arguments)
    assert fake == meta
    if real.startswith("IndexError") or any(each in real for each in VALUES):
        assert meta == "fine"
    else:
        assert meta == real


# ---- sizes


@drawn(60)
@given(st.sampled_from(sorted(CASES)), st.data())
def test_huge_sizes_are_checked_without_a_crash(name: str, data: st.DataObject) -> None:
    """One dimension of one tensor or of all is huge, by expand, without memory. Only the checks are called."""
    operator, arguments = operator_call(CASES[name])
    huge = data.draw(st.sampled_from([2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**40]))
    tensors = [i for i, x in enumerate(arguments) if isinstance(x, Tensor) and x.dim()]
    chosen = tensors if data.draw(st.booleans()) else [data.draw(st.sampled_from(tensors))]
    dim = data.draw(st.integers(0, 3))
    changed = list(arguments)
    for i in chosen:
        x = arguments[i].to("meta")
        d = dim % x.dim()
        changed[i] = x.narrow(d, 0, min(1, x.shape[d])).expand([huge if e == d else n for e, n in enumerate(x.shape)])
    try:
        check(operator.name().removeprefix("gdn_cuda::"), tuple(changed))
    except ValueError as error:
        assert MESSAGE.fullmatch(str(error)), error


# ---- malformed indices

INDEX_ARGUMENTS = [
    (name, argument)
    for name in (
        "decode",
        "decode-verify",
        "decode-step-states",
        "decode-packed",
        "decode-verify-packed",
        "recurrent-accepted",
        "recurrent-PREFILL-packed",
        "chunked-pool",
        "chunked-packed",
        "cumsum-packed",
        "u-w-packed",
        "state-update-packed",
        "compute-o-packed",
    )
    for argument, x in arguments_of(CASES[name]).items()
    if isinstance(x, Tensor) and x.dtype in (torch.int32, torch.int64)
]


@drawn(120)
@given(st.sampled_from(INDEX_ARGUMENTS), st.data())
def test_malformed_indices_are_refused_and_nothing_is_written(which: tuple[str, str], data: st.DataObject) -> None:
    name, argument = which
    case = CASES[name]
    arguments = arguments_of(case)
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    limits = torch.iinfo(dtype)
    extreme = [limits.min, -(2**31), -1, 0, 1, 2, 3, 69, 70, 73, 74, 2**31 - 1, limits.max]
    entries = st.lists(st.sampled_from(extreme), min_size=arguments[argument].numel(), max_size=arguments[argument].numel())
    arguments[argument] = torch.tensor(data.draw(entries), dtype=dtype).view(arguments[argument].shape)
    before = {n: x.clone() for n, x in arguments.items() if isinstance(x, Tensor)}
    try:
        case.function(**arguments)
    except (ValueError, IndexError) as error:
        assert MESSAGE.fullmatch(str(error)), error
        for n, x in before.items():
            torch.testing.assert_close(x, arguments[n], rtol=0, atol=0, equal_nan=True)


# ---- threads


def test_eight_threads_get_the_results_of_one() -> None:
    """Valid and refused calls of every operator at the same time, in and out of grad mode."""
    names = sorted(CASES)

    def run(turn: int) -> list[Any]:
        got: list[Any] = []
        for name in names[turn % 3 :: 3]:
            arguments = {n: copied(x) for n, x in arguments_of(CASES[name]).items()}
            with torch.set_grad_enabled(turn % 2 == 0):
                if name.startswith("decode"):
                    got.append(answer(CASES[name], arguments | {"out": arguments["query"]}))
                results = CASES[name].function(**arguments)
            got += [x.clone() for x in tree_leaves((results, arguments)) if isinstance(x, Tensor)]
        return got

    alone = [run(turn) for turn in range(6)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(run, range(16)))
    for turn, got in enumerate(together):
        for mine, other in zip(alone[turn % 6], got, strict=True):
            if isinstance(mine, Tensor):
                torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)
            else:
                assert mine == other
