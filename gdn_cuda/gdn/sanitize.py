"""Calls of every kernel of the Gated Delta Net at small sizes, for compute-sanitizer (tests/sanitize.py)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..operators.hostile import hostile_indices
from ..operators.measure import draw, sanitizes
from ..operators.verify import hostile as hostile_verify
from ..runtime import package as gdn_cuda
from .inputs import make_gdn_inputs, make_packed_gdn_inputs

HALVES = (torch.bfloat16, torch.float16)


@sanitizes()
def decode(tokens: int = 1, sequences: int = 3) -> None:
    for (dk, dv), io, state in product(((128, 128), (96, 40)), HALVES, (torch.float32, torch.bfloat16, torch.int8)):
        heads = {
            name: draw(sequences, tokens, n, d, dtype=io)
            for name, n, d in (("query", 8, dk), ("key", 8, dk), ("value", 16, dv))
        }
        a, b = draw(sequences, tokens, 16, dtype=io), draw(sequences, tokens, 16, dtype=io)
        slots = torch.tensor([2, -1, *range(3, sequences + 1)], device="cuda")
        pool, scales = gdn_cuda.convert_states(draw(sequences + 2, 16, dv, dk), state)
        states = {"state_pool": pool, "state_scales": scales}
        gdn_cuda.fused_decode(**heads, a=a, b=b, A_log=draw(16), dt_bias=draw(16), **states, state_indices=slots)

        channels = {"a": draw(sequences, tokens, 16, dk, dtype=io), "b": b, "A_log": draw(16), "dt_bias": draw(16, dk)}
        gdn_cuda.fused_decode(**heads, **channels, lower_bound=-5.0, **states, state_indices=slots)
        if tokens > 1:  # slots and counts, most of them invalid
            gates = {"a": a, "b": b, "A_log": draw(16), "dt_bias": draw(16)}
            gdn_cuda.fused_decode(**heads, **gates, **states, **hostile_verify(sequences, tokens))


@sanitizes()
def verify() -> None:
    decode(tokens=5, sequences=40)


def padded(dk: int, dv: int, T: int, **options: Any) -> dict[str, Tensor]:
    return make_gdn_inputs(T=T, dk=dk, dv=dv, dtype=torch.bfloat16, device="cuda", gate_range=(-2.0, 0.0), **options)


def packed(dk: int, dv: int, **options: Any) -> dict[str, Tensor]:
    lengths = [70, 0, 1, 200]
    return make_packed_gdn_inputs(lengths, dk=dk, dv=dv, dtype=torch.bfloat16, device="cuda", gate_range=(-2.0, 0.0), **options)


# Invalid offsets for 271 tokens and 4 sequences, and invalid indices; tests/gdn/gpu/test_fuzz.py draws more of them.
HOSTILE_OFFSETS = (
    [0, 271, 0, 271, 0],
    [300, 200, 100, 0, -100],
    [-(2**63), 2**63 - 1, 5, -(2**63), 2**62],
    [0, 70, 70, 71, 2**32],
)
HOSTILE_INDICES = [2**63 - 1, -(2**63), 2**32, 1]


def hostile(dk: int, dv: int, **options: Any) -> Iterator[dict[str, Tensor]]:
    for offsets in HOSTILE_OFFSETS:
        yield packed(dk, dv, **options) | {"cu_seqlens": torch.tensor(offsets, device="cuda")}


def summarize(x: dict[str, Tensor]) -> None:
    gdn_cuda.chunked_summary(**{name: t for name, t in x.items() if name not in ("query", "state")})


def with_resets(x: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs with resets, and a state before them that is not finite, for the kernels' rare paths."""
    x["gate"][..., 40, :] = -torch.inf
    x["state"][:, 0] = torch.nan
    return x


@sanitizes()
def recurrent() -> None:
    for dk, dv in ((128, 128), (96, 192), (40, 72)):
        gdn_cuda.recurrent_forward(**packed(dk, dv), is_qk_norm=True)
    gdn_cuda.recurrent_forward(**padded(64, 64, 9), inference_mode=gdn_cuda.InferenceMode.SPEC_VERIFY)
    for x in hostile(64, 64):
        gdn_cuda.recurrent_forward(**x, inference_mode=gdn_cuda.InferenceMode.SPEC_VERIFY)
    for x in (packed(96, 40), packed(40, 72), *hostile(64, 64)):  # a gate for every channel of the key
        channels = draw(*x["gate"].shape, x["key"].shape[-1])
        gdn_cuda.recurrent_forward(**(x | {"gate": channels}), lower_bound=-5.0)


@sanitizes("gdn/prefill")
def prefill(dims: tuple[tuple[int, int], ...] = ((128, 128), (96, 192), (40, 72), (256, 72))) -> None:
    for dk, dv in dims:
        gdn_cuda.chunked_forward(**packed(dk, dv), use_qk_l2norm=True)
        gdn_cuda.chunked_forward(**padded(dk, dv, 150), checkpoint_every=64)
        summarize(padded(dk, dv, 150))
        for x in hostile(dk, dv):
            summarize(x)
            gdn_cuda.chunked_forward(**x, checkpoint_every=64)
            gdn_cuda.chunked_forward(**x, state_indices=torch.tensor(HOSTILE_INDICES, device="cuda"))
        gdn_cuda.chunked_forward(**with_resets(padded(dk, dv, 150)))
    # So many sequences that blocks process several.
    for dk, dv in (*dims, (128, 256)):
        gdn_cuda.chunked_forward(**with_resets(padded(dk, dv, 70, B=20, Hk=8, Hv=16)))
        gdn_cuda.chunked_forward(**padded(dk, dv, 130, B=20, Hk=8, Hv=16), use_qk_l2norm=True)
    # Split sequences: with two heads and weak gates, states carry over between segments; with 32 heads, two kernels are
    # launched and one of them computes.
    for heads, pace in ((2, 1e-4), (32, 1.0), (32, 1e-4)):
        split = padded(*dims[0], 5200, B=1, Hk=heads // 2, Hv=heads)
        split["gate"] *= pace
        gdn_cuda.chunked_forward(**split)
    # Many segments, whose summaries are composed in groups; heads with different numbers of segments.
    for heads, tokens, slow_decay in ((1, 9000, slice(None)), (8, 17000, slice(1))):
        split = padded(*dims[0], tokens, B=1, Hk=1, Hv=heads)
        split["gate"][..., slow_decay] *= 1e-4
        gdn_cuda.chunked_forward(**split)


@sanitizes()
def prefill_ahead() -> None:
    """Few heads and long sequences; also with invalid offsets."""
    options: dict[str, Any] = {"Hk": 1, "Hv": 2, "dtype": torch.bfloat16, "device": "cuda", "gate_range": (-2.0, 0.0)}
    for dk, dv in ((128, 128), (40, 72)):
        x = make_packed_gdn_inputs([1600, 0, 70, 5000], dk=dk, dv=dv, **options)
        for offsets in (x["cu_seqlens"].tolist(), [0, 6670, 0, 6670, 0], [-(2**63), 2**63 - 1, 5, -(2**63), 2**62]):
            x["cu_seqlens"] = torch.tensor(offsets, device="cuda")
            gdn_cuda.chunked_forward(**x, use_qk_l2norm=True, deterministic=True)
            summarize(x)
        # Long sequences are split by their own lengths, in a launch of gdn/prefill.
        x = make_packed_gdn_inputs([5200, 70, 0, 10300], dk=dk, dv=dv, **options)
        x["gate"] *= 1e-4
        for offsets in (x["cu_seqlens"].tolist(), [0, 15570, 0, 15570, 0], [5120, 15570, 5121, 10240, 15570]):
            x["cu_seqlens"] = torch.tensor(offsets, device="cuda")
            gdn_cuda.chunked_forward(**x, deterministic=True)
        gdn_cuda.chunked_forward(**x, state_indices=torch.tensor(HOSTILE_INDICES, device="cuda"), deterministic=True)
        alone = make_gdn_inputs(B=1, T=1500, dk=dk, dv=dv, **options)
        gdn_cuda.chunked_forward(**alone, checkpoint_every=64, deterministic=True)
        gdn_cuda.chunked_forward(**with_resets(alone), deterministic=True)


@sanitizes("summary", "summary_gates", "summary_tails", "summary_keys", "summary_segments", "summary_fold")
def summaries() -> None:
    options: dict[str, Any] = {"Hk": 1, "Hv": 2, "dtype": torch.bfloat16, "device": "cuda", "gate_range": (-2.0, -1.0)}
    for dk, dv in ((128, 128), (96, 192), (40, 72)):
        x = make_packed_gdn_inputs([1600, 0, 70, 5000], dk=dk, dv=dv, **options)
        x["gate"][..., 0] *= 1e-4
        for offsets in (x["cu_seqlens"].tolist(), [0, 6670, 0, 6670, 0], [-(2**63), 2**63 - 1, 5, -(2**63), 2**62]):
            x["cu_seqlens"] = torch.tensor(offsets, device="cuda")
            summarize(x)
            part = {name: t for name, t in x.items() if name not in ("query", "state")}
            gdn_cuda.chunked_summary(**part, state=x["state"].float(), transition=False, use_qk_l2norm=True)
            gradient_of_state(x)


def gradient_of_state(x: dict[str, Any]) -> None:
    """Alone, by the kernels of summaries and the backward's chain."""
    operator = torch.ops.gdn_cuda.gated_delta_rule_backward
    names = [argument.name for argument in operator.default._schema.arguments]
    x = {**dict.fromkeys(names), **x, "grad_out": x["value"], "grad_final_state": x["state"].float()}
    flags = ("only_value_and_state", "use_qk_l2norm", "deterministic", "beta_is_logit", "allow_negative_eigenvalues")
    x |= dict.fromkeys((*flags, "gate_is_linear", "recurrent"), False) | {"only_state": True}
    operator(*(x[name] for name in names))


@sanitizes("fold_states")
def fold_states() -> None:
    for dk, dv, parts in ((128, 128, 3), (40, 9, 1), (256, 72, 2)):
        state, every = (torch.randn(*lead, 2, 3, rows, dk, device="cuda") for lead, rows in (((), dv), ((parts,), dv + dk)))
        for reverse in (False, True):
            gdn_cuda.fold_states(state, every[..., :dv, :], every[..., dv:, :], reverse=reverse)


@sanitizes("gdn/prefill_mma", variables={"GDN_PREFILL": "mma"})
def prefill_mma() -> None:
    prefill(((192, 128), (256, 256)))


def on_pool(x: dict[str, Any]) -> dict[str, Any]:
    """The call with its states as a pool, and invalid slots among its indices."""
    flags = torch.tensor([True, False, True, False], device="cuda")
    slots = torch.tensor(HOSTILE_INDICES, device="cuda")
    return x | {"has_initial_state": flags, "state_indices": slots, "write_indices": slots.flip(0)}


@sanitizes()
def recurrent_any() -> None:
    for dk, dv in ((40, 72), (128, 128), (21, 19)):
        for x in (packed(dk, dv), *hostile(dk, dv)):
            odd = {name: x[name].float() for name in ("query", "key", "value")}
            states = x["state"].mT.contiguous().mT
            gdn_cuda.recurrent_forward(**(x | odd | {"state": states}), is_qk_norm=True)
            summarize(x | odd)
            gdn_cuda.chunked_forward(**on_pool(x | odd | {"state": states}), checkpoint_every=64)
            grouped = x | {"query": torch.cat([x["query"], x["key"]], dim=-2), "value": x["value"][..., :2, :]}
            gdn_cuda.recurrent_forward(**grouped, is_qk_norm=True)
            gates_of_channels(x)


def gates_of_channels(x: dict[str, Any]) -> None:
    """In every form, with what a channel's gate may be."""
    tokens, (heads, dk) = x["value"].shape[:-2], (x["value"].shape[-2], x["key"].shape[-1])
    gate = draw(*tokens, heads, dk).abs().neg()
    gate.view(-1)[::7], gate.view(-1)[::11], gate.view(-1)[::64] = -torch.inf, -1e8, torch.nan
    parameters = {"A_log": draw(heads), "dt_bias": draw(heads, dk)}
    for form in ({}, {"gate_is_linear": True}, parameters, parameters | {"lower_bound": -5.0}, {"lower_bound": -5.0}):
        gdn_cuda.recurrent_forward(**(x | {"gate": gate} | form), is_qk_norm=True)
    summarize(x | {"gate": gate})


@sanitizes("chunk_gates", "move_states", "convert_rows")
def converted_gates_and_states() -> None:
    for x in (packed(64, 72), *hostile(64, 72)):
        heads, rows = x["value"].shape[1], [torch.zeros(n, *x["state"].shape[1:], device="cuda") for n in (3, 9)]
        raw = {"A_log": draw(heads), "dt_bias": draw(heads), "beta_is_logit": True}
        buffers = {"checkpoints": rows[0].half(), "states_before": rows[1], "checkpoint_every": 64}
        codes, scales = gdn_cuda.convert_states(x["state"], torch.int8)
        gdn_cuda.chunked_forward(**on_pool(x | {"state": codes}), state_scales=scales, **buffers)
        gdn_cuda.recurrent_forward(**(x | {"state": codes}), state_scales=scales, is_qk_norm=True)
        slots, across = hostile_indices(5), x["state"].mT.contiguous().mT  # columns are contiguous
        gdn_cuda.convert_states(codes, torch.float32, scales, out=torch.empty_like(across))
        for states, given in ((codes, scales), (x["state"], None), (across, None)):
            gdn_cuda.convert_states(states, torch.float32, given, state_indices=slots)
            out = {"out": codes.clone(), "out_scales": scales.clone()}
            gdn_cuda.convert_states(states, torch.int8, given, state_indices=slots, write_indices=slots.flip(0), **out)
        gdn_cuda.chunked_forward(**on_pool(x | {"state": x["state"].half()}), **raw, **buffers)
        gdn_cuda.chunked_forward(
            **(x | {"gate": None, "beta": None}), **buffers, final_state=x["state"].mT.contiguous().mT.clone()
        )


@sanitizes(
    "backward_prepare",
    "backward_chain",
    "backward_links",
    "backward_gradients",
    "backward_mma_states",
    "backward_mma_gradients",
    "chunk_gates_backward",
)
def backward() -> None:
    for dk, dv in ((64, 72), (128, 128), (256, 40)):
        split = padded(dk, dv, 1300, B=1, Hk=1, Hv=2)  # chains of few heads, along time
        for x in (padded(dk, dv, 150), split, packed(dk, dv), *hostile(dk, dv)):
            heads = x["value"].shape[-2]
            raw = x | {"A_log": draw(heads), "dt_bias": draw(heads), "beta_is_logit": True, "use_qk_l2norm": True}
            for call, names in ((x, ("query", "state")), (raw, ("gate", "A_log")), (x, ("value",))):
                leaves = {name: call[name].clone().requires_grad_() for name in names}
                results = gdn_cuda.chunked_forward(**(call | leaves))
                torch.autograd.grad(results, list(leaves.values()), [torch.ones_like(y) for y in results])


def channel_backward(x: dict[str, Tensor]) -> None:
    """Gates in every form."""
    heads, tokens, dk = x["value"].shape[-2], x["value"].shape[:-1], x["key"].shape[-1]
    gates = x | {"gate": -draw(*tokens, dk).abs()}
    raw = gates | {"dt_bias": draw(heads, dk), "beta_is_logit": True, "use_qk_l2norm": True}
    bounded = raw | {"A_log": draw(heads), "lower_bound": -5.0, "gate": draw(*tokens, dk, dtype=torch.bfloat16)}
    for call, names in (
        (gates, ("query", "state")),
        (raw | {"A_log": draw(heads)}, ("gate", "A_log")),
        (bounded, ("key", "dt_bias")),
        (gates | {"gate": gates["gate"].exp(), "gate_is_linear": True}, ("gate", "beta")),
        (gates, ("value",)),
    ):
        leaves = {name: call[name].clone().requires_grad_() for name in names}
        results = gdn_cuda.chunked_forward(**(call | leaves))
        torch.autograd.grad(results, list(leaves.values()), [torch.ones_like(y) for y in results])


@sanitizes("kda_backward_prepare", "kda_backward_states", "kda_backward_gradients")
def kda_backward() -> None:
    """Packed sequences with right and invalid offsets, and key heads that share value heads."""
    for dk, dv in ((64, 72), (128, 128), (256, 40)):
        for x in (padded(dk, dv, 150), packed(dk, dv), *hostile(dk, dv)):
            channel_backward(x)


@sanitizes("kda_gradients")
def kda_wide_backward() -> None:
    """The same with as many key heads as value heads, by chunks of 64 tokens: gdn/kda_prepare and gdn/backward_chain too."""
    equal = {"Hk": 2, "Hv": 2}
    for dk, dv in ((64, 72), (128, 128), (40, 8)):
        split = padded(dk, dv, 1300, B=1, **equal)  # chains of few heads, along time
        for x in (padded(dk, dv, 150, **equal), split, packed(dk, dv, **equal), *hostile(dk, dv, **equal)):
            channel_backward(x)


@sanitizes("chunk_cumsum", "mn_major", "compute_u_w", "seq_state_update", "compute_o")
def chunk_steps() -> None:
    for dk, dv in ((128, 128), (96, 192)):
        run_chunk_steps(padded(dk, dv, 150), states=(2, 3))
        run_chunk_steps(with_resets(padded(dk, dv, 150)), states=(2, 3))
        for x in hostile(dk, dv):
            run_chunk_steps(x, states=(5,))


def run_chunk_steps(x: dict[str, Tensor], states: tuple[int, ...]) -> None:
    k, v, q, offsets = x["key"], x["value"], x["query"], x.get("cu_seqlens")
    (heads, dv), dk, batch, tokens = v.shape[-2:], k.shape[-1], x["state"].shape[0], v.shape[-3]
    gate, beta = (gdn_cuda.transpose_to_mn_major(x[name]) for name in ("gate", "beta"))
    summed = gdn_cuda.transpose_to_mn_major(torch.zeros_like(x["gate"]))
    gdn_cuda.chunk_local_cumsum_bf16(gate, summed, batch, tokens, heads, cu_seqlens=offsets)
    u, w, o = torch.zeros_like(v), torch.zeros(*v.shape[:-1], dk, dtype=v.dtype, device="cuda"), torch.zeros_like(v)
    gdn_cuda.bf16_gdn_compute_u_w(k, v, u, w, beta, summed, cu_seqlens=offsets)
    before, last = (torch.zeros(*lead, heads, dv, dk, device="cuda") for lead in (states, (batch,)))
    if offsets is None:
        before[:, 0] = x["state"]
    gdn_cuda.bf16_chunked_seq_state_update(k, u, w, before, last, summed, True, cu_seqlens=offsets)
    gdn_cuda.bf16_gdn_chunked_compute_O(q, before, k, u, o, summed, cu_seqlens=offsets)


@sanitizes("split_sequences")
def parts() -> None:
    """States after any token, at offsets that do not exist and in slots that do not exist."""
    for x in (packed(64, 72), *hostile(64, 72)):
        offsets = torch.tensor([70, -5, 2**40, 64], device="cuda")
        rows = {name: x[name] for name in ("query", "key", "value", "beta", "gate", "state", "cu_seqlens")}
        gdn_cuda.chunked_forward(**rows, checkpoint_offsets=offsets)
        slots = torch.tensor([2, -1, 9, 0], device="cuda")
        gdn_cuda.chunked_forward(**rows, state_indices=slots, checkpoint_offsets=offsets)


@sanitizes("kda_prepare", "kda_own", "kda_order")
def kda() -> None:
    """Packed sequences with right and invalid offsets, decays of every speed, and a reset with values that are not finite; from
    states and from a pool, with slots that do not exist."""
    offsets = ([0, 70, 70, 71, 271], *HOSTILE_OFFSETS)
    for cu_seqlens, dk, dv, io, pace in product(offsets, (128, 40), (128, 72), HALVES, (-0.01, -1.0, -30.0)):
        query, key = (draw(271, 1, dk, dtype=io) for _ in range(2))
        value, beta = draw(271, 2, dv, dtype=io), draw(271, 2).sigmoid() * 2
        gate = pace * draw(271, 2, dk).abs().to(io if dk == 40 else torch.float32)
        if pace == -1.0:
            gate[40] = -torch.inf
            value[30] = torch.inf
        rows = (query, key, value, beta, gate)
        packed_at = torch.tensor(cu_seqlens, device="cuda")
        gdn_cuda.chunked_forward(*rows, draw(4, 2, dv, dk), packed_at, use_qk_l2norm=True, checkpoint_every=64)
        slots = torch.tensor([2, -1, 9, 0], device="cuda")
        gdn_cuda.chunked_forward(*rows, draw(3, 2, dv, dk).to(io), packed_at, state_indices=slots)
        gdn_cuda.chunked_summary(*rows[1:], packed_at)
    # more work tiles than multiprocessors
    many = {name: draw(1000, 64, 128, dtype=torch.bfloat16) for name in ("query", "key", "value")}
    many |= {"beta": draw(1000, 64).sigmoid(), "gate": -draw(1000, 64, 128).abs()}
    for cu_seqlens in ([0, 0, 70, 71, 400, 1000], [0, 1000, 0, 900, 1000, 1000]):
        gdn_cuda.chunked_forward(**many, cu_seqlens=torch.tensor(cu_seqlens, device="cuda"), use_qk_l2norm=True)


@sanitizes("kda_fold", variables={"GDN_KDA_SEGMENTS": "3"})
def kda_segments() -> None:
    """As `kda`, in segments, of states that are not finite too."""
    kda()
    x = {name: draw(1, 500, 2, 128, dtype=torch.bfloat16) for name in ("query", "key", "value")}
    x["value"][0, 3] = torch.inf
    gate = -draw(1, 500, 2, 128).abs()
    gate[0, 200] = -torch.inf
    gdn_cuda.chunked_forward(**x, beta=draw(1, 500, 2).sigmoid(), gate=gate, use_qk_l2norm=True)


@sanitizes("decode_codes", variables={"GDN_DECODE_CODES": "1"})
def decode_codes() -> None:
    """As `decode`, with rows on every alignment, slots of padding and past the pool, and heads in parts."""
    for sequences in (3, 100):
        decode(sequences=sequences)


@sanitizes("kda_ahead", variables={"GDN_KDA_AHEAD": "1"})
def kda_ahead() -> None:
    """As `kda`, in one launch."""
    kda()


@sanitizes("kda_mma", variables={"GDN_PREFILL": "mma"})
def kda_mma() -> None:
    """Packed sequences with right and invalid offsets, pools, checkpoints, every form of a gate, decays of every speed, and a
    reset with values that are not finite."""
    offsets = ([0, 70, 70, 71, 271], *HOSTILE_OFFSETS)
    for cu_seqlens, (dk, dv), io, pace in product(offsets, ((128, 128), (40, 72), (256, 24)), HALVES, (-0.01, -30.0)):
        query, key = (draw(271, 1, dk, dtype=io) for _ in range(2))
        value, beta = draw(271, 2, dv, dtype=io), draw(271, 2).sigmoid() * 2
        gate = pace * draw(271, 2, dk).abs().to(io if dk == 40 else torch.float32)
        value[30], gate[31] = torch.inf, -torch.inf
        x = {"query": query, "key": key, "value": value, "beta": beta, "gate": gate, "state": draw(4, 2, dv, dk)}
        x |= {"cu_seqlens": torch.tensor(cu_seqlens, device="cuda")}
        gdn_cuda.chunked_forward(**x, use_qk_l2norm=True, checkpoint_every=64)
        raw = {"A_log": draw(2), "dt_bias": draw(2, dk), "beta_is_logit": True}
        gdn_cuda.chunked_forward(**on_pool(x), **raw)
        gdn_cuda.chunked_forward(**x, **raw, lower_bound=-5.0)
        summarize(x)
