"""Other libraries' operators on the same inputs: FLA, FlashInfer and FlashQLA, each where it can be imported, and torch.

An adapter gives a call and the reading of what it returns, or raises with the reason why there is none. Casts, transposes and
whatever else a library wants around its call happen in the adapter, so that only the library's own work is timed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import bench_structured, bench_toeplitz
from .bench_cases import Inputs, Outcome
from .bench_timing import Call

TOLERANCE = 2e-2  # well above what bf16 makes of one operation, well below what two operations differ by

PeerOutcome = Outcome | tuple[Tensor, None]  # None: it has no state, or no gradients


class Absent(Exception):
    """Why a peer is not measured."""


class Disagreement(Absent):
    """A peer's result is not ours."""

    @classmethod
    def unless_small(cls, found: tuple[float, ...], names: tuple[str, str] = ("output", "state")) -> None:
        if not all(error < TOLERANCE for error in found):  # not any(... >= ...): NaN counts
            said = ", ".join(f"{error:.1e} of the {name}" for error, name in zip(found, names, strict=False))
            raise cls(f"its result is not ours: relative RMS {said}")


@dataclass
class Peer:
    call: Call
    read: Callable[[Any], PeerOutcome]  # what the call returned, in our layouts
    captured: bool = True  # where our row is a graph's replay, so is this
    on_host: bool = False  # computes on the CPU


def errors(expected: Outcome, got: PeerOutcome) -> tuple[float, ...]:
    """Relative RMS of output and state, of what the peer has."""
    return tuple(_relative_rms(theirs, ours) for theirs, ours in zip(got, expected, strict=True) if theirs is not None)


def _relative_rms(got: Tensor, expected: Tensor) -> float:
    if got.shape != expected.shape:
        return float("inf")
    difference = torch.linalg.vector_norm(got.float() - expected.float())
    return float(difference / torch.linalg.vector_norm(expected.float()))


def _import(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # a peer may fail to import in any way; it is only left out
        raise Absent(f"{module}.{name}: {type(error).__name__}: {error}") from error


def _require_heads_of_128(x: Inputs) -> None:
    if x["query"].shape[-1] != 128 or x["value"].shape[-1] != 128:
        raise Absent("its head dimensions are 128")


def _transposed(state: Tensor) -> Tensor:
    return state.transpose(-1, -2).contiguous()


# ---- FLA 0.6: Triton. States are (dk, dv)


def _fla(name: str) -> Any:
    # Otherwise FLA hands chunk_gated_delta_rule to FlashQLA where that is installed, and the columns show one library twice.
    os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"
    return _import("fla.ops.gated_delta_rule", name)


def fla_decode(x: Inputs) -> Peer:
    """With l2 norm, gates and sigmoid in its kernel; every call writes a new state."""
    if x["state_pool"].dtype != torch.float32:
        raise Absent("the states it writes are fp32")
    recurrent = _fla("fused_recurrent_gated_delta_rule")
    state = _transposed(x["state_pool"][x["state_indices"]])  # it has no slots

    def call() -> Any:
        return recurrent(
            q=x["query"],
            k=x["key"],
            v=x["value"],
            g=x["a"],
            beta=x["b"],
            A_log=x["A_log"],
            dt_bias=x["dt_bias"],
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
        )

    return Peer(call, lambda returned: (returned[0], _transposed(returned[1])))


def fla_recurrent(x: Inputs) -> Peer:
    return _chunked_or_recurrent(_fla("fused_recurrent_gated_delta_rule"), x)


def fla_chunked(x: Inputs) -> Peer:
    return _chunked_or_recurrent(_fla("chunk_gated_delta_rule"), x)


def _chunked_or_recurrent(forward: Any, x: Inputs) -> Peer:
    """The signature that FLA gave these operators, and FlashQLA kept. Packed sequences are a batch of one."""
    packed = x.get("cu_seqlens") is not None
    inputs = {
        name: x[ours].unsqueeze(0) if packed else x[ours]
        for name, ours in {"q": "query", "k": "key", "v": "value", "g": "gate", "beta": "beta"}.items()
    }
    if packed:
        inputs["cu_seqlens"] = x["cu_seqlens"].long()
    state = _transposed(x["state"])

    def read(returned: Any) -> Outcome:
        out, final_state = returned
        return out.squeeze(0) if packed else out, _transposed(final_state)

    return Peer(lambda: forward(**inputs, initial_state=state, output_final_state=True), read)


# ---- FlashQLA 0.1: TileLang. States are (dk, dv)


def flashqla_chunked(x: Inputs) -> Peer:
    _require_heads_of_128(x)
    return _chunked_or_recurrent(_import("flash_qla", "chunk_gated_delta_rule"), x)


# ---- FlashInfer 0.7: CuTe DSL. States are (dv, dk), as ours


def flashinfer_decode(x: Inputs) -> Peer:
    decode = _import("flashinfer.gdn_decode", "gated_delta_rule_decode_pretranspose")
    pool, slots = x["state_pool"].clone(), x["state_indices"]
    output = torch.empty_like(x["value"])  # without one it clears a new one

    def call() -> Any:
        return decode(
            q=x["query"],
            k=x["key"],
            v=x["value"],
            state=None,
            A_log=x["A_log"],
            a=x["a"],
            dt_bias=x["dt_bias"],
            b=x["b"],
            output=output,
            use_qk_l2norm=True,
            initial_state=pool,
            initial_state_indices=slots,
        )

    return Peer(call, lambda returned: (returned[0], returned[1][slots]))


def flashinfer_chunked(x: Inputs) -> Peer:
    """Packed sequences only, the decay itself instead of its logarithm, and outputs that the caller allocates."""
    _require_heads_of_128(x)
    forward = _import("flashinfer.gdn_prefill", "chunk_gated_delta_rule")
    leading = x["value"].shape[:-2]
    tokens = {name: x[name].flatten(0, -3) for name in ("query", "key", "value")}
    decay, beta = (values.float().flatten(0, -2).contiguous() for values in (x["gate"].exp(), x["beta"]))
    offsets = x.get("cu_seqlens")
    if offsets is None:
        batch, length = leading
        offsets = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=decay.device)
    longest = int(offsets.diff().max())  # it launches smaller grids when told
    output, final_state = torch.empty_like(tokens["value"]), torch.empty_like(x["state"])

    def call() -> Any:
        return forward(
            tokens["query"],
            tokens["key"],
            tokens["value"],
            g=decay,
            beta=beta,
            initial_state=x["state"],
            output_final_state=True,
            cu_seqlens=offsets,
            output=output,
            output_state=final_state,
            max_seqlen=longest,
        )

    return Peer(call, lambda returned: (returned[0].unflatten(0, leading), returned[1]))


# ---- torch, for the structured operators


def in_torch(function: bench_structured.Function, x: Inputs) -> Peer:
    return Peer(*bench_structured.peer(function, x))


def in_torch_eagerly(function: bench_structured.Function, x: Inputs) -> Peer:
    return Peer(*bench_structured.peer(function, x), captured=False)


# ---- SciPy: Levinson's recursion and transforms on the CPU, one system after another; no gradients


def scipy_toeplitz(name: str, x: Inputs) -> Peer:
    function = _import("scipy.linalg", name)
    device, right = x["c"].device, "x" if "x" in x else "b"
    columns, numbers = x["c"].cpu().numpy(), x[right].cpu().numpy()
    rows = x["r"].cpu().numpy() if "r" in x else columns

    def call() -> Any:
        return [function((c, r), b) for c, r, b in zip(columns, rows, numbers, strict=True)]

    return Peer(call, lambda found: (torch.stack([torch.from_numpy(one) for one in found]).to(device), None), on_host=True)


PEERS: dict[str, dict[str, Callable[[Inputs], Peer]]] = {
    "fused_decode": {"FlashInfer": flashinfer_decode, "FLA": fla_decode},
    "recurrent_forward": {"FLA": fla_recurrent},
    "fused_gdn_gating": {},
    "chunked_forward": {"FlashQLA": flashqla_chunked, "FlashInfer": flashinfer_chunked, "FLA": fla_chunked},
    "bf16_gdn_compute_u_w": {},
    "bf16_chunked_seq_state_update": {},
    "bf16_gdn_chunked_compute_O": {},
    "cauchy_conj": {"naive torch": partial(in_torch, bench_structured.naive_cauchy_conj)},
    "cauchy_kernel": {
        "naive torch": partial(in_torch, bench_structured.naive_cauchy_kernel),
        "torch product": partial(in_torch, bench_structured.formed_cauchy_kernel),
    },
    "log_vandermonde": {"naive torch": partial(in_torch, bench_structured.naive_log_vandermonde)},
    "toeplitz_matvec": {
        "torch FFT": partial(in_torch, bench_toeplitz.transforms),
        "SciPy": partial(scipy_toeplitz, "matmul_toeplitz"),
    },
    "toeplitz_solve_symmetric": {
        "torch Cholesky": partial(in_torch_eagerly, bench_toeplitz.cholesky),
        "SciPy": partial(scipy_toeplitz, "solve_toeplitz"),
    },
    "toeplitz_solve": {
        "torch LU": partial(in_torch_eagerly, bench_toeplitz.lu),
        "SciPy": partial(scipy_toeplitz, "solve_toeplitz"),
    },
}


def outcome_names(operator: str) -> tuple[str, str]:
    """What the two parts of an outcome are."""
    differentiable = hasattr(bench_structured, operator) or hasattr(bench_toeplitz, operator)
    return ("output", "gradients") if differentiable else ("output", "state")
