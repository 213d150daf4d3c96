"""Contexts of FLA's: what a rank knows, and what is refused. Ranks are threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fla_cases_on_ranks import LAYOUTS, LENGTHS, RULES, Rule, check_fla, check_rule, tokens_of
from layer_cases_on_ranks import offsets
from thread_ranks import Board, ThreadRanks, on_threads

from gdn_cuda.compat import fla


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_have_the_results_and_gradients_of_one_process(size: int, layout: str) -> None:
    on_threads(size, lambda ranks: check_fla(ranks, ranks.rank, size, layout))


CHANNELS = Rule("chunk_kda")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", [(120,), (60, 60), (15,) * 8, (1, 118, 1)], ids=str)
def test_sequences_over_all_ranks_and_within_them(lengths: tuple[int, ...], layout: str) -> None:
    for size in (2, 3, 4):
        on_threads(size, lambda ranks, size=size: check_rule(ranks, ranks.rank, size, layout, CHANNELS, lengths=lengths))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [slice(None), slice(0, 3)], ids=["all channels", "some channels"])
@pytest.mark.parametrize("at", [0, -1], ids=["first of a rank", "last of a rank"])
def test_decays_of_zero_at_a_border(at: int, channels: slice, layout: str) -> None:
    def run(ranks: ThreadRanks) -> None:
        x = CHANNELS.call()
        for rank in range(4):
            for part in tokens_of(rank, 4, layout, 120).chunk(2):
                x["g"][:, part[at], :, channels] = -torch.inf
        check_rule(ranks, ranks.rank, 4, layout, CHANNELS, lengths=(120,), x=x)

    on_threads(4, run)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta"])
def test_nan_stays_in_its_sequence(name: str, layout: str) -> None:
    """That of the third of four sequences, which borders cross."""

    def run(ranks: ThreadRanks) -> None:
        x = CHANNELS.call()
        x[name][:, 35] = torch.nan
        check_rule(ranks, ranks.rank, 4, layout, CHANNELS, lengths=(20, 10, 70, 20), x=x, spoilt=2)

    on_threads(4, run)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", [LENGTHS, (120,), (1, 59, 60), (15,) * 8, (3, 0, 100, 0, 17)], ids=str)
def test_a_context_has_the_attributes_of_fla_s(lengths: tuple[int, ...], layout: str) -> None:
    theirs = pytest.importorskip("fla.ops.cp.context")
    for size in (1, 2, 3, 4):
        made = on_threads(size, lambda ranks: fla.build_cp_context(offsets(lengths), ranks, 4, layout=layout))[0]
        for rank, ours in enumerate(made):
            other = theirs.get_cp_cu_seqlens(
                offsets(lengths), world_size=size, rank=rank, conv1d_kernel_size=4, layout=layout, group=None
            )
            for name in vars(other).keys() - {"group", "pre_num_ranks_dev", "post_num_ranks_dev"}:
                one, two = getattr(ours, name), getattr(other, name)
                same = torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
                assert same, (name, one, two, size, rank)
            assert ours.num_seqs == other.num_seqs and ours.is_cp_enabled
            copy = ours.copy_for_backward()
            assert copy.cu_seqlens is not ours.cu_seqlens and torch.equal(copy.cu_seqlens, ours.cu_seqlens)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layout": "striped"}, "build_cp_context: layout: expected 'contiguous' or 'zigzag', got 'striped'"),
        ({"cu_seqlens": torch.tensor([1, 4])}, "build_cp_context: cu_seqlens: expected 0 first, got 1"),
        ({"cu_seqlens": torch.tensor([0, 7])}, "cu_seqlens: expected a multiple of 2 tokens for 2 ranks, contiguous, got 7"),
        ({"layout": "zigzag", "cu_seqlens": torch.tensor([0, 6])}, "a multiple of 4 tokens for 2 ranks, zigzag, got 6"),
        ({"cu_seqlens": torch.tensor([0, 0])}, "a multiple of 2 tokens for 2 ranks, contiguous, got 0"),
    ],
    ids=str,
)
def test_contexts_that_are_refused(given: dict[str, Any], message: str) -> None:
    def run(ranks: ThreadRanks) -> None:
        with pytest.raises(ValueError, match=message):
            fla.build_cp_context(**{"cu_seqlens": torch.tensor([0, 8]), "group": ranks} | given)

    on_threads(2, run)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_context_of_other_tokens_is_refused_before_a_collective(rule: Rule) -> None:
    """No tokens too."""
    x = rule.call()

    def run(ranks: ThreadRanks) -> None:
        context = fla.build_cp_context(offsets(LENGTHS), ranks)
        before = ranks.board.collectives
        for count in (0, 1, 59, 61, 120):
            given = {key: y if key in ("A_log", "dt_bias") else y[:, :count] for key, y in x.items()}
            with pytest.raises(ValueError, match=rf"^{rule.function}: q: expected 60 tokens, those of rank {ranks.rank} of 2"):
                getattr(fla, rule.function)(**given, **rule.options, cp_context=context)
        assert ranks.board.collectives == before

    on_threads(2, run)


def test_calls_that_are_refused() -> None:
    context = fla.build_cp_context(offsets(LENGTHS), ThreadRanks(Board(1), 0, 1))
    for rule in RULES:
        x = rule.call()
        message = rf"{rule.function}: initial_state: expected 4 states, those of cp_context\.cu_seqlens, got 5"
        with pytest.raises(ValueError, match=message):
            getattr(fla, rule.function)(**x, **rule.options, initial_state=torch.zeros(5, 2, 8, 8), cp_context=context)
    x = CHANNELS.call()
    for given, message in (
        ({"return_intermediate_states": True}, "return_intermediate_states: expected False with cp_context, got True"),
        ({"use_graph": True}, "use_graph: expected False with cp_context, .*, got True"),
        ({"cp_context": object()}, "cp_context: expected None, or what build_cp_context returns, with a group, got a object"),
        ({"g": x["g"][..., 0]}, r"g: expected \(B, T, HV, K\)"),
        ({"g": x["g"][..., :7]}, "g: expected "),
    ):
        with pytest.raises(ValueError, match=f"^chunk_kda: {message}"):
            fla.chunk_kda(**(x | {"cp_context": context} | given))
    rows, weight = Rule("chunk_gated_delta_rule").call()["g"], torch.ones(2, 4)
    for given, message in (
        ({"initial_state": weight}, "initial_state: expected None with cp_context, got a tensor"),
        ({"output_final_state": True}, "output_final_state: expected False with cp_context, got True"),
        ({"residual": rows}, "causal_conv1d: residual: expected None, got a tensor"),
        ({"weight": None}, "weight: expected a tensor"),
        ({"cp_context": object()}, "cp_context: expected None, or what build_cp_context returns, with a group, got a object"),
    ):
        with pytest.raises(ValueError, match=message):
            fla.causal_conv1d(rows, **{"weight": weight, "cp_context": context} | given)
    with pytest.raises(AttributeError, match=r"compat\.fla' has no attribute 'build_context'"):
        _ = fla.build_context
