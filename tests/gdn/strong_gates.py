"""Gates that reset the state: the recurrence that defines their effect, inputs, and checks for CPU and GPU tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda import InferenceMode
from gdn_cuda.gdn.inputs import make_gdn_inputs

NAN, INF = float("nan"), float("inf")
GATES = (-1e2, -1e4, -1e6, -1e8, -1e16, -INF)
PLACES = (0, 1, 31, 63, 64)  # in and around the first chunk of 64
TOKENS = 150


def oracle(x: dict[str, Tensor], scale: float | None = None) -> tuple[Tensor, Tensor]:
    """The output and the final state of padded inputs by the recurrence, token by token in fp64. A gate whose exponential is 0
    in fp32 resets the state to zero."""
    q, k, v, beta, gate, s = (x[name].double() for name in ("query", "key", "value", "beta", "gate", "state"))
    heads = torch.arange(v.shape[2]) // (v.shape[2] // k.shape[2])
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    out = torch.empty_like(v)
    for t in range(v.shape[1]):
        key, query, g = k[:, t, heads, :, None], q[:, t, heads, :, None], gate[:, t, :, None, None]
        s = torch.where(g.float().exp() == 0, 0, g.exp() * s)
        s = s + beta[:, t, :, None, None] * (v[:, t, :, :, None] - s @ key) @ key.mT
        out[:, t] = scale * (s @ query)[..., 0]
    return out, s


@dataclass(frozen=True)
class Case:
    """Strong gates for some tokens, and infinities or NaN before them."""

    name: str
    gates: tuple[tuple[int, float], ...]
    state: float = 0.0  # unless 0, parts of the initial state have this value
    token: tuple[str, int, float] | None = None  # (tensor, token, value to write)

    @property
    def clean_from(self) -> int:
        """The first token with finite results: the first reset after infinities and NaN."""
        if self.state == 0 and self.token is None:
            return 0
        first = 0 if self.token is None else self.token[1] + 1
        return min(token for token, gate in self.gates if token >= first and gate < -104)

    def inputs(self, seed: int, **options: object) -> dict[str, Tensor]:
        defaults = {"B": 2, "T": TOKENS, "Hk": 1, "Hv": 2, "dtype": torch.bfloat16, "gate_range": (-0.2, 0.0), "beta_max": 1.5}
        x = make_gdn_inputs(seed=seed, **{**defaults, **options})  # type: ignore[arg-type]
        for token, gate in self.gates:
            x["gate"][:, token] = gate
        if self.state != 0:
            x["state"][..., ::3, 1] = self.state
        if self.token is not None:
            name, token, element = self.token
            x[name][:, token, ..., :1] = element
        return x


ONE_GATE = [Case(f"{gate} at {place}", ((place, gate),)) for gate in GATES for place in PLACES]
MANY = tuple((token, gate) for token, gate in zip((0, 3, 17, 18, 40, 62, 63, 64, 65, 127, 149), 2 * GATES, strict=False))
SEVERAL = [
    Case("several resets", tuple((token, -INF) for token in (3, 17, 18, 40, 63, 64, 100))),
    Case("several of -1e6", tuple((token, -1e6) for token in (3, 17, 18, 40, 63, 64, 100))),
    Case("of every strength", MANY),
    Case("resets from 20 on", tuple((token, -INF) for token in range(20, TOKENS))),
    Case("all resets", tuple((token, -1e9) for token in range(TOKENS))),
]
STATES = [
    Case(f"{state} in the state, {gate} at {place}", ((place, gate),), state=state)
    for state in (INF, NAN)
    for gate in (-1e4, -INF)
    for place in PLACES
]
STATES.append(Case("nan in the state, several resets", ((5, -INF), (9, -INF), (70, -1e6)), state=NAN))
TOKEN_NAMES = ("key", "value", "beta", "gate")
NOT_FINITE_TOKENS = [
    Case(f"{element} in {name}, {gate} at 31", ((31, gate),), token=(name, 5, element))
    for name in TOKEN_NAMES
    for element in (INF, NAN)
    for gate in (-1e4, -INF)
    if (name, element) != ("gate", INF)
]
NOT_FINITE_TOKENS += [
    Case("nan after a reset and before one", ((3, -INF), (31, -INF)), token=("value", 5, NAN)),
    Case("nan in another chunk", ((100, -INF),), token=("key", 5, NAN)),
    Case("nan between two chunks", ((64, -INF),), token=("value", 63, NAN)),
]
CASES = ONE_GATE + SEVERAL + STATES + NOT_FINITE_TOKENS


def id_of(case: Case) -> str:
    return case.name.replace(" ", "-")


def check(case: Case, out: Tensor, state: Tensor, x: dict[str, Tensor], bound: float, state_bound: float) -> None:
    """Compares with the oracle: all outputs that should be finite, those from the first reset on, and the state."""
    expected, expected_state = oracle({name: t.cpu() for name, t in x.items()})
    out, state = out.cpu(), state.cpu()
    first_reset = min((token for token, gate in case.gates if token >= case.clean_from), default=0)
    for first in {case.clean_from, first_reset}:
        assert rel_rms(out[:, first:], expected[:, first:]) < bound, first
    assert rel_rms(state, expected_state) < state_bound


def from_chunk_steps(x: dict[str, Tensor], cumulated: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Output and final state by the steps of the chunked form, with `cumulated` in place of chunk_local_cumsum_bf16's sums if
    given. Outputs are poisoned first."""
    q, k, v = x["query"], x["key"], x["value"]
    (B, T, Hv, dv), dk = v.shape, k.shape[-1]

    def poisoned(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.full(shape, NAN, dtype=dtype, device=v.device)

    if cumulated is None:
        cumulated = gdn_cuda.transpose_to_mn_major(torch.empty_like(x["gate"]))
        gdn_cuda.chunk_local_cumsum_bf16(x["gate"], cumulated, B, T, Hv)
    beta = gdn_cuda.transpose_to_mn_major(x["beta"])
    u, w, o = poisoned(B, T, Hv, dv), poisoned(B, T, Hv, dk), poisoned(B, T, Hv, dv)
    states = poisoned(B, -(-T // 64), Hv, dv, dk, dtype=torch.float32)
    last = poisoned(B, Hv, dv, dk, dtype=torch.float32)
    states[:, 0] = x["state"]
    gdn_cuda.bf16_gdn_compute_u_w(k, v, u, w, beta, cumulated)
    gdn_cuda.bf16_chunked_seq_state_update(k, u, w, states, last, cumulated, is_initial_state=True)
    gdn_cuda.bf16_gdn_chunked_compute_O(q, states, k, u, o, cumulated)
    return o, last


def sum_of_the_caller(gate: Tensor) -> Tensor:
    """torch.cumsum in each chunk, as a caller may compute it: -inf from the first -inf of a chunk on."""
    chunks = [part.cumsum(1) for part in gate.split(64, dim=1)]
    return gdn_cuda.transpose_to_mn_major(torch.cat(chunks, dim=1))


def gates_of_that_sum(gate: Tensor) -> Tensor:
    """The gates with the same effect as `sum_of_the_caller`: no decay after the first -inf of a chunk."""
    parts = []
    for part in gate.split(64, dim=1):
        after_reset = (part == -INF).cumsum(1).roll(1, dims=1) > 0
        after_reset[:, 0] = False
        parts.append(part.masked_fill(after_reset, 0))
    return torch.cat(parts, dim=1)


# ---- fused_decode, which computes gates from a projection


def decode_inputs(x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Arguments of fused_decode for the same recurrence: with A_log = 0 the gate is -softplus(a); b is the logit of beta."""
    heads = x["value"].shape[2]
    zeros = torch.zeros(heads, device=x["gate"].device)
    a = -x["gate"] + torch.log(-torch.expm1(x["gate"].double())).float()  # the inverse of softplus
    tokens = {name: x[name] for name in ("query", "key", "value")}
    pool = torch.cat([torch.ones_like(x["state"][:1]), x["state"]])
    slots = torch.arange(1, pool.shape[0], device=pool.device)
    return tokens | {
        "a": a,
        "b": x["beta"].logit(),
        "A_log": zeros,
        "dt_bias": zeros,
        "state_pool": pool,
        "state_indices": slots,
    }


def check_decode(case: Case, x: dict[str, Tensor], bound: float, state_bound: float) -> None:
    """Runs all tokens in one call (verify), then one token per call (decode)."""
    together, stepwise = decode_inputs(x), decode_inputs(x)
    out = gdn_cuda.fused_decode(**together, use_qk_l2norm=False)
    check(case, out, together["state_pool"][1:], x, bound, state_bound)
    outs = []
    for t in range(x["value"].shape[1]):
        token = {name: tensor[:, t : t + 1] for name, tensor in stepwise.items() if name in ("query", "key", "value", "a", "b")}
        outs.append(gdn_cuda.fused_decode(**{**stepwise, **token}, use_qk_l2norm=False))
    check(case, torch.cat(outs, dim=1), stepwise["state_pool"][1:], x, bound, state_bound)


def check_other_heads_are_untouched(run: object, x: dict[str, Tensor]) -> None:
    """NaN in the inputs of one sequence and value head does not change a bit of the others. `run(x)`: output, state."""
    clean_out, clean_state = run(x)  # type: ignore[operator]
    for name in ("value", "beta", "gate", "state"):
        spoilt = {key: t.clone() for key, t in x.items()}
        if name == "state":
            spoilt["state"][1, 0] = NAN
        else:
            spoilt[name][1, 5, 0] = NAN
        out, state = run(spoilt)  # type: ignore[operator]
        assert not out[1, :, 0].isfinite().all(), name
        for n, h in ((0, 0), (0, 1), (1, 1)):
            assert torch.equal(out[n, :, h], clean_out[n, :, h]), name
            assert torch.equal(state[n, h], clean_state[n, h]), name


def recurrent_forward(x: dict[str, Tensor], mode: InferenceMode = InferenceMode.PREFILL) -> tuple[Tensor, Tensor]:
    out, state = gdn_cuda.recurrent_forward(**x, inference_mode=mode)
    return out, state[:, -1] if mode == InferenceMode.SPEC_VERIFY else state


def chunked_forward(x: dict[str, Tensor], **options: object) -> tuple[Tensor, Tensor]:
    out, state = gdn_cuda.chunked_forward(**x, out=torch.full_like(x["value"], NAN), **options)  # type: ignore[arg-type, misc]
    assert state is not None
    return out, state
