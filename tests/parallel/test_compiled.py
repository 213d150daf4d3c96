"""`chunked_forward` over ranks as an operator of torch: its schema, fakes and derivatives, and when it is compiled again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thread_ranks import Board, ThreadRanks, on_threads
from torch import Tensor

from gdn_cuda import parallel
from gdn_cuda.parallel import rule
from gdn_cuda.parallel.ranks import RanksOfShapes

OPTIONS = dict.fromkeys(rule._OPTIONS, False)
OPTIONS |= {"scale": None, "lower_bound": None, "use_qk_l2norm": True, "workspace": 1 << 30}
ALONE = ThreadRanks(Board(1), 0, 1)


def context_of(first: int, mode: str | None = None) -> parallel.Context:
    """Two fragments of 30 tokens on one rank, the later one first, so that a state goes from one to the other."""
    return parallel.context(ALONE, [30], fragments=[[(first, 30), (0, first)]], mode=mode)


@pytest.mark.parametrize("mode", ["gather", "doubling"])
def test_torch_checks_the_operator(mode: str) -> None:
    context = context_of(10, mode)
    rng = torch.Generator().manual_seed(0)
    x = [torch.randn(1, 30, 2, 8, generator=rng, requires_grad=True) for _ in range(3)]
    state = torch.randn(1, 2, 8, 8, generator=rng, requires_grad=True)
    args = (*x, None, None, state, None, None, context.number, *OPTIONS.values(), True, True)
    torch.library.opcheck(torch.ops.gdn_cuda_parallel.rule.default, args)


@pytest.mark.parametrize("mode", ["gather", "doubling", "ring"])
def test_traces_of_ranks_that_send_maps_have_the_shapes_of_calls(mode: str) -> None:
    """On four ranks, where there are maps, of what forward returns and keeps."""

    def run(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, [5, 70, 9], "zigzag", mode=mode)
        rows = {name: torch.ones(1, context.tokens, 2, n) for name, n in (("query", 8), ("key", 8), ("value", 6))}
        call = rule.Call(context, rows | dict.fromkeys(rule.TENSORS[3:]), OPTIONS)
        flat: list[list[Any]] = []
        for each in (call, rule._with_shapes(call)):
            out, last, saved = rule._forward_of(each, True, True)
            found = rule._backward_of(each, out, last, saved, [True] * 3 + [False] * 5)
            flat.append([(y.shape, y.dtype) for y in (out, last, *saved, *found)])
        assert flat[0] == flat[1]

    on_threads(4, run)


def test_shapes_are_traced_without_collectives() -> None:
    ranks = RanksOfShapes(1, 3)
    assert ranks.supports(torch.device("meta")) and ranks.start_all_gather(torch.ones(2, 5))().shape == (3, 2, 5)
    assert ranks.all_to_all(torch.ones(6, 2), [1, 2, 3], [4, 0, 1]).shape == (5, 2)


def test_code_is_compiled_once_for_equal_contexts() -> None:
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend)
    def function(x: Tensor, context: parallel.Context) -> Tensor:
        return parallel.chunked_forward(x, x, x, None, None, context=context, use_qk_l2norm=True)[0].sin()

    x, kept = torch.randn(1, 30, 2, 8, generator=torch.Generator().manual_seed(0)), context_of(10)
    for first, count in ((10, 1), (10, 1), (20, 2), (10, 2)):
        context = context_of(first)
        expected, _ = parallel.chunked_forward(x, x, x, None, None, context=context, use_qk_l2norm=True)
        assert torch.equal(function(x, context), expected.sin()) and len(compiled) == count
    assert kept is context_of(10)
