"""Mamba-2's scan by selective_scan, for what no kernel of its own takes: every channel of a head has the head's step and decay.
In fp32, with the gradients of selective_scan. After a reset 0 times infinity is NaN, as there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..gdn.state_codes import decode, encode
from ..operators.dtypes import state_dtype
from ..scan.selective import selective_scan
from .checkpoints import Places, reported, write_rows
from .reference import Steps
from .spans import sequences_of

_RESET = 1e4  # e^-x is 0


def _wide(x: Any, name: str) -> Tensor | None:
    y = getattr(x, name)
    return None if y is None else y.to(state_dtype(x.x))


def _decays(x: Any, delta: Tensor) -> Tensor:
    """−δA, (B, T, H), so that A is −1 and a token where seq_idx changes can decay everything."""
    decays = -delta * _wide(x, "A")
    if x.seq_idx is None:
        return decays
    before = torch.nn.functional.pad(x.seq_idx[:, :-1], (1, 0))
    return torch.where((x.seq_idx != before)[..., None], _RESET, decays)


def _initial_state(x: Any) -> Tensor | None:
    if x.initial_state is None:
        return None
    initial = x.initial_state.to(state_dtype(x.x)).flatten(1, 2)
    return initial if x.has_initial_state is None else torch.where(x.has_initial_state[:, None, None], initial, 0)


def expanded_scan(x: Any) -> tuple[Tensor, Tensor]:
    """(out, last states) of a call of ssd_scan, the arguments as attributes of x."""
    batch, tokens, heads, channels = x.x.shape
    raw, bias, D, z = (_wide(x, name) for name in ("dt", "dt_bias", "D", "z"))
    assert raw is not None
    delta = Steps(x.dt_softplus, (x.dt_lowest, x.dt_highest))(raw, bias)

    def to_channels(y: Tensor) -> Tensor:
        return y[..., None].expand(batch, tokens, heads, channels).flatten(2).mT

    def to_groups(y: Tensor) -> Tensor:
        return y.to(state_dtype(x.x)).permute(0, 2, 3, 1).contiguous()

    states = x.B.shape[-1]
    out, last = selective_scan(
        x.x.to(state_dtype(x.x)).flatten(2).mT,
        to_channels(delta),
        delta.new_full((heads * channels, states), -1),
        to_groups(x.B),
        to_groups(x.C),
        None if D is None else (D if D.dim() == 2 else D[:, None]).expand(heads, channels).flatten(),
        None if z is None else z.flatten(2).mT,
        delta_a=to_channels(_decays(x, delta)),
        return_last_state=True,
        initial_state=_initial_state(x),
        cu_seqlens=x.cu_seqlens,
    )
    return out.mT.unflatten(-1, (heads, channels)).to(x.x.dtype), last.reshape(sequences_of(x), heads, channels, states)


def _packed(x: Any) -> Any:
    """A batch as packed sequences."""
    batch, tokens = x.x.shape[:2]
    if x.cu_seqlens is not None:
        return x
    offsets = torch.arange(batch + 1, device=x.x.device) * tokens
    rows = {
        name: y.reshape(1, batch * tokens, *y.shape[2:]) for name in ("x", "dt", "B") if (y := getattr(x, name)) is not None
    }
    return x.replaced(**rows, cu_seqlens=offsets)


def _write_checkpoints(x: Any, buffers: list[tuple[Tensor, Places]]) -> None:
    """From the summaries of the pieces between them, one piece after another."""
    if not buffers:
        return
    batch_tokens, initial = x.x.shape[1], _initial_state(x)
    padded = x.cu_seqlens is None
    x = _packed(x)
    offsets = x.cu_seqlens.long()
    tokens = [places.token + places.sequence * batch_tokens if padded else places.token for _, places in buffers]
    kept = [torch.where(places.exists, token, offsets[-1]) for (_, places), token in zip(buffers, tokens, strict=True)]
    ends = torch.cat([offsets, *kept]).sort().values
    x = x.replaced(cu_seqlens=ends, initial_state=None, has_initial_state=None, seq_idx=None)
    added, decays = expanded_summary(x)
    sequence = torch.searchsorted(offsets[1:], ends[1:]).clamp(max=offsets.shape[0] - 2)
    first = (
        added.new_zeros((offsets.shape[0] - 1, *added.shape[1:])) if initial is None else initial.reshape(-1, *added.shape[1:])
    )
    begins, states = ends[:-1] == offsets[sequence], torch.empty_like(added)
    state = added.new_zeros(added.shape[1:])
    for n in range(added.shape[0]):
        state = torch.where(begins[n], first[sequence[n]], state)
        decay = decays[n, :, None, None]
        state = torch.where(decay == 0, 0, decay * state) + added[n]
        states[n] = state
    for (rows, places), token in zip(buffers, kept, strict=True):
        piece = torch.searchsorted(ends[1:], token).clamp(max=added.shape[0] - 1)
        starts = token == offsets[places.sequence]
        found = torch.where(starts[:, None, None, None], first[places.sequence], states[piece])
        write_rows(rows, places, found)


def expanded_into(x: Any) -> None:
    """Writes the results to x.out and x.last_state."""
    _write_checkpoints(x, reported(x))
    out, last = expanded_scan(x)
    x.out.copy_(out)
    if x.write_indices is not None:
        _write_slots(x.last_state, x.write_indices.long(), last, True)
    elif x.last_state is not None:
        x.last_state.copy_(last)


def _write_slots(pool: Tensor, to: Tensor, last: Tensor, computed: Tensor | bool) -> None:
    """The states of computed sequences, to slots of which no value is read by the host."""
    count = pool.shape[0]
    if count == 0 or to.numel() == 0:
        return
    written = computed & (to >= 0) & (to < count)
    # A sequence that writes nothing writes what another one does, or if none does, slot 0 as it is.
    like = written.int().argmax(0, keepdim=True)  # torch would read an index without dimensions on the host
    any_written, last = written[like], last.to(pool.dtype)
    to = torch.where(written, to, torch.where(any_written, to[like], 0))
    pool.index_copy_(0, to, torch.where(written[:, None, None, None], last, torch.where(any_written, last[like], pool[0])))


def expanded_pool(x: Any) -> None:
    """With a pool of states, x.initial_state, and no value of x.state_indices read by the host."""
    pool, slots = x.initial_state, x.state_indices.long()
    count = pool.shape[0]
    buffers = reported(x)
    if count == 0 or slots.numel() == 0:
        for rows, places in buffers:
            write_rows(rows, places, torch.zeros_like(rows))
        x.out.copy_(_outputs_without_slots(x, slots))
        return
    computed = (slots >= 0) & (slots < count)
    read = torch.where(computed, slots, 0)
    initial = pool[read] if x.state_scales is None else decode(pool[read], x.state_scales[read])
    initial = torch.where(computed[:, None, None, None], initial, 0)
    given = {"seq_idx": None, "initial_state": initial}
    gathered = x.replaced(**given)
    _write_checkpoints(gathered, buffers)
    out, last = expanded_scan(gathered)
    fills = _outputs_without_slots(x, slots)
    x.out.copy_(torch.where(fills == 1, out, fills))
    if not x.update_state:
        return
    to = slots if x.write_indices is None else x.write_indices.long()
    if x.state_scales is not None:
        last, scales = encode(last)
        _write_slots(x.state_scales, to, scales, computed)
    _write_slots(pool, to, last, computed)


def _outputs_without_slots(x: Any, slots: Tensor) -> Tensor:
    """For every token, 1 if its sequence is computed, else its output: 0 without a slot, NaN with one past the pool."""
    kept = torch.where(slots < 0, 0.0, torch.where(slots < x.initial_state.shape[0], 1.0, torch.nan)).to(x.x.dtype)
    if x.cu_seqlens is None:
        return kept[:, None, None, None]
    tokens = torch.arange(x.x.shape[1], device=x.x.device)
    sequence = torch.searchsorted(x.cu_seqlens.to(tokens.dtype), tokens, right=True) - 1
    inside = (sequence >= 0) & (sequence < slots.shape[0])
    by_token = kept[sequence.clamp(0, max(slots.shape[0] - 1, 0))] if slots.numel() else kept.new_zeros(tokens.shape)
    return torch.where(inside, by_token, 0)[None, :, None, None]


def expanded_summary(x: Any) -> tuple[Tensor, Tensor]:
    """The states after sequences, and the decays over them."""
    _, last = expanded_scan(x.replaced(C=x.B, D=None, z=None, seq_idx=None, has_initial_state=None))
    raw, bias = _wide(x, "dt"), _wide(x, "dt_bias")
    assert raw is not None
    # What is clamped is 0 as a decay, and sums up to it keep their precision.
    logs = (Steps(x.dt_softplus, (x.dt_lowest, x.dt_highest))(raw, bias).double() * x.A.double()).clamp(min=-800)
    if x.cu_seqlens is None:
        return last, logs.sum(1).exp().to(last.dtype)
    tokens, offsets = logs.shape[1], x.cu_seqlens.long()
    start, end = offsets[:-1].clamp(0, tokens), offsets[1:].clamp(0, tokens)

    def in_sequences(y: Tensor) -> Tensor:
        sums = torch.nn.functional.pad(y[0].cumsum(0), (0, 0, 1, 0))
        return sums[end] - sums[start]

    invalid = logs.isnan()  # NaN in one sequence would be in the sums of those after it
    decays = in_sequences(torch.where(invalid, 0, logs)).exp()
    return last, torch.where(in_sequences(invalid.long()) > 0, torch.nan, decays).to(last.dtype)
