"""No public function drops a gradient silently; the list of functions is the package's own."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from history import Arguments, Call, lost
from operator_cases import copied, written_by
from torch import Tensor

import gdn_cuda
from gdn_cuda import compat
from gdn_cuda.compat import attention_gym, hotdog, lrnnx_scans, mamba_ssm, recurrent_gemma, structured_functions, vortex
from gdn_cuda.compat import causal_conv1d as conv_names
from gdn_cuda.compat import fla as fla_names
from gdn_cuda.integrations import flashinfer
from gdn_cuda.layers.decode_layer import layer_arguments
from gdn_cuda.layers.kda_decode_layer import layer_arguments as kda_arguments
from gdn_cuda.operators import examples
from gdn_cuda.operators.declare import DECLARATIONS
from gdn_cuda.operators.examples import Case, draw

# Types, functions that compute nothing, and cauchy_pin_l2, which copies CUDA tensors by torch.cat.
WITHOUT_HISTORY = {
    "__version__",
    "build_cp_context",
    "cauchy_pin_l2",
    "compile",
    "DisplacementType",
    "explain",
    "FLACPContext",
    "GatedDeltaNet",
    "get_cauchy_kernel",
    "get_vandermonde_kernel",
    "get_vandermonde_transpose_kernel",
    "init",
    "InferenceMode",
    "install",
    "kernel_registry",
    "no_compile",
    "patch",
    "Projections",
    "replay_buffers",
    "ReplayBuffers",
    "ring_buffers",
    "RingBuffers",
    "ssd_replay_buffers",
    "SsdReplayBuffers",
    "S4DKernel",
    "S4Kernel",
    "uninstall",
    "unpatch",
    "warmup",
}
Function = Callable[..., Any]


def is_numeric(x: Any) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def call_of(
    function: Function, make: Callable[[], Arguments], written: tuple[str, ...] = (), raises: str | None = None
) -> Call:
    def leaves() -> dict[str, Tensor]:
        return {name: copied(x) for name, x in make().items() if is_numeric(x) and name != "banks"}  # banks are flags

    def run(**tensors: Tensor) -> Any:
        return function(**make() | tensors)

    return Call(leaves, run, written, raises)


def example_call(case: Case, function: Function) -> Call:
    def make() -> Arguments:
        return {name: x for name, x in case.make(2, 3, 0).items() if name not in ("out", "out_scales")}

    written = tuple(name for name in written_by(case) if is_numeric(make().get(name)) and name != "banks")
    return call_of(function, make, written, case.function.__name__)


PUBLIC = {name: getattr(gdn_cuda, name) for name in gdn_cuda.__all__}
EXAMPLES = {name: case for name, case in examples.load().items() if PUBLIC.get(case.function.__name__) is case.function}
# Calls with these have no gradients.
WRITES: dict[Function, set[str]] = {
    gdn_cuda.chunked_forward: {
        *("state_indices", "checkpoint_every", "checkpoint_offsets"),
        *("final_state", "checkpoints", "states_before"),
    },
    gdn_cuda.ssd_scan: {"state_indices", "last_state", "checkpoint_every", "checkpoint_offsets", "boundaries"},
}
REFERENCES = {name: case for name, case in EXAMPLES.items() if hasattr(gdn_cuda.reference, case.function.__name__)}


def refuses_gradients(case: Case) -> bool:
    return bool(case.make(2, 3, 0).keys() & WRITES.get(case.function, set()))


@pytest.mark.parametrize("case", EXAMPLES.values(), ids=EXAMPLES)
def test_functions_with_examples(case: Case) -> None:
    call = example_call(case, case.function)
    if refuses_gradients(case):
        with pytest.raises(ValueError, match=rf"{case.function.__name__}: .* where an input requires a gradient"):
            lost(call)
    else:
        assert not lost(call)


@pytest.mark.parametrize("case", REFERENCES.values(), ids=REFERENCES)
def test_references_have_gradients(case: Case) -> None:
    """Errors of functions without gradients say to use these."""
    call = example_call(case, getattr(gdn_cuda.reference, case.function.__name__))
    assert not lost(Call(call.leaves, call.run, call.written))


# ---- Functions without examples

f32, c64, bf16 = torch.float32, torch.complex64, torch.bfloat16


def real(*shape: int, seed: int = 0) -> Tensor:
    return draw(*shape, seed=seed, dtype=f32)


def complexes(*shape: int, seed: int = 0) -> Tensor:
    return draw(*shape, seed=seed, dtype=c64)


def by_name(**shapes: tuple[int, ...]) -> Arguments:
    return {name: real(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}


def prompts() -> Arguments:
    return layer_arguments(2, 3, 0, "split", slots=4) | {"state_indices": torch.tensor([3, 1])}


def rule() -> Arguments:
    """The call of FLA's layer."""
    x = by_name(q=(2, 5, 1, 4), k=(2, 5, 1, 4), v=(2, 5, 2, 3), g=(2, 5, 2), beta=(2, 5, 2), initial_state=(2, 2, 4, 3))
    x |= by_name(A_log=(2,), dt_bias=(2,)) | {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
    return x | {"use_qk_l2norm_in_kernel": True, "output_final_state": True}


def gym_rule() -> Arguments:
    names = ("q", "k", "v", "beta", "initial_state")
    return {name: x for name, x in rule().items() if name in names} | {"gate": -real(2, 5, 2).abs(), "output_final_state": True}


def commit(state_pool: Tensor, keys: Tensor, updates: Tensor, decays: Tensor, banks: Tensor) -> Any:
    buffers = gdn_cuda.ReplayBuffers(keys, updates, decays, banks)
    return gdn_cuda.commit_replay(state_pool, buffers, torch.tensor([1]), torch.tensor([2]))


def committed() -> Arguments:
    pool = real(3, 2, 8, 16)
    buffers = gdn_cuda.replay_buffers(pool, 2, 1)
    return (
        {"state_pool": pool}
        | {name: torch.full_like(x, 0.5) for name, x in buffers._asdict().items() if name != "banks"}
        | {"banks": buffers.banks}
    )


def commit_ssd(state_pool: Tensor, x_ring: Tensor, B_ring: Tensor, delta_ring: Tensor, A: Tensor) -> Any:
    buffers = gdn_cuda.SsdReplayBuffers(x_ring, B_ring, delta_ring, torch.tensor([0, 1], dtype=torch.int32))
    return gdn_cuda.ssd_commit_replay(state_pool, buffers, A)


def committed_ssd() -> Arguments:
    rings = by_name(x_ring=(2, 3, 2, 8), B_ring=(2, 3, 1, 16), delta_ring=(2, 3, 2))
    return by_name(state_pool=(2, 2, 8, 16)) | rings | {"A": -real(2).abs()}


def toeplitz() -> Arguments:
    return {"c": real(5) + torch.tensor([9.0, 0, 0, 0, 0]), "b": real(5, seed=1)}


def convolution(**more: tuple[int, ...]) -> Arguments:
    return by_name(x=(2, 4, 6), weight=(4, 3), bias=(4,), **more) | {"return_final_states": True}


def scan_arguments() -> Arguments:
    x = by_name(u=(2, 4, 6), delta=(2, 4, 6), A=(4, 3), B=(2, 3, 6), C=(2, 3, 6), D=(4,), z=(2, 4, 6), delta_bias=(4,))
    return x | {"A": -x["A"].abs(), "delta_softplus": True, "return_last_state": True}


def step_arguments() -> Arguments:
    x = by_name(state=(2, 4, 3), x=(2, 4), dt=(2, 4), A=(4, 3), B=(2, 3), C=(2, 3), D=(4,), z=(2, 4), dt_bias=(4,))
    return x | {"A": -x["A"].abs()}


def inner_arguments() -> Arguments:
    x = by_name(xz=(2, 8, 6), conv1d_weight=(4, 1, 3), conv1d_bias=(4,), x_proj_weight=(7, 4), delta_proj_weight=(4, 1))
    return x | by_name(out_proj_weight=(5, 4), out_proj_bias=(5,)) | {"A": -real(4, 3, seed=9).abs(), "D": real(4, seed=8)}


def ssd_arguments() -> Arguments:
    x = by_name(x=(2, 4, 2, 3), dt=(2, 4, 2), A=(2,), B=(2, 4, 1, 5), C=(2, 4, 1, 5), D=(2,), z=(2, 4, 2, 3), dt_bias=(2,))
    return x | {"A": -x["A"].abs(), "dt": x["dt"].abs()}


def chunk_scan_arguments() -> Arguments:
    return ssd_arguments() | by_name(initial_states=(2, 2, 3, 5)) | {"chunk_size": 2, "return_final_states": True}


def varlen_arguments() -> Arguments:
    """Of the states after packed sequences, which have no gradient."""
    x = {name: y[:1] if y.dim() > 2 else y for name, y in ssd_arguments().items()}
    return x | {"chunk_size": 2, "cu_seqlens": torch.tensor([0, 1, 4]), "return_varlen_states": True}


def split_arguments(everything: bool = False) -> Arguments:
    x = by_name(zxbcdt=(2, 4, 24), conv1d_weight=(16, 3), conv1d_bias=(16,), dt_bias=(2,), A=(2,), D=(2,))
    x |= {"A": -x["A"].abs(), "chunk_size": 2, "headdim": 3}
    if not everything:
        return x
    x |= by_name(rmsnorm_weight=(6,), outproj_weight=(5, 9), outproj_bias=(5,), initial_states=(2, 2, 3, 5))
    return x | {"zxbcdt": real(2, 4, 30), "return_final_states": True}


def conv_scan_arguments() -> Arguments:
    x = by_name(xBC=(2, 4, 16), conv1d_weight=(16, 3), conv1d_bias=(16,), dt=(2, 4, 2), A=(2,), D=(2,), dt_bias=(2,))
    return x | {"A": -x["A"].abs(), "chunk_size": 2, "headdim": 3}


def simplified() -> Arguments:
    x = {"u": complexes(2, 3, 6), "delta": real(4).abs(), "A": complexes(4, seed=1), "B": complexes(4, 3), "C": complexes(3, 4)}
    return x | {"A": torch.complex(-x["A"].real.abs(), x["A"].imag)}


def s7() -> Arguments:
    return by_name(u=(2, 3, 6), A=(2, 4, 6), B=(2, 4, 3, 6), C=(2, 3, 4, 6), bias=(2, 4, 6))


def s7_layer() -> Arguments:
    x = by_name(hidden_states=(2, 5, 3), in_proj_weight=(3, 3), x_proj_weight=(4 + 12 + 12 + 3 + 4, 3), gate_proj_weight=(3, 3))
    return x | {"d_state": 4, "base_params": real(4, seed=9)}


def flashinfer_prefill() -> Arguments:
    x = {name: draw(6, 2, 16, seed=i, dtype=bf16) for i, name in enumerate("qkv")}
    x |= {"g": real(6, 2).sigmoid(), "beta": real(6, 2, seed=1).sigmoid(), "initial_state": real(2, 2, 16, 16)}
    return x | {"cu_seqlens": torch.tensor([0, 2, 6]), "output_final_state": True, "use_qk_l2norm_in_kernel": True}


def flashinfer_decode(tokens: int = 1) -> Arguments:
    x: Arguments = {name: draw(2, tokens, 2, 16, seed=i, dtype=bf16) for i, name in enumerate("qkv")}
    x |= {name: draw(2, tokens, 2, seed=i, dtype=bf16) for i, name in enumerate("ab")}
    return x | {"A_log": real(2), "dt_bias": real(2), "state": real(2, 2, 16, 16)}


def flashinfer_drafts() -> Arguments:
    x = flashinfer_decode(3)
    return x | {"initial_state": x.pop("state"), "initial_state_indices": torch.arange(2), "disable_state_update": False}


def sequences() -> Arguments:
    """Of gdn_prefill_layer without pools."""
    x = layer_arguments(2, 3, 0, "split")
    return {name: y for name, y in x.items() if name not in ("conv_pool", "state_pool", "state_indices")}


def kda_prompts() -> Arguments:
    x = kda_arguments(2, 0) | {"lower_bound": -5.0, "key_heads": 1}
    return x | {name: torch.stack([x[name]] * 3, 1) for name in ("qkv", "a", "b", "z")}


KDA_GATE = {"g": (2, 3, 4, 5), "A_log": (4,), "dt_bias": (20,)}


def kda_rule() -> Arguments:
    x = by_name(q=(2, 3, 2, 5), k=(2, 3, 2, 5), v=(2, 3, 4, 6), g=(2, 3, 4, 5), beta=(2, 3, 4), initial_state=(2, 4, 5, 6))
    return x | {"g": -x["g"].abs(), "output_final_state": True}


def kda_tokens() -> Arguments:
    """FlashInfer's call of a token of each sequence."""
    x = by_name(q=(2, 1, 2, 4), k=(2, 1, 2, 4), v=(2, 1, 2, 4), g=(2, 1, 2, 4), beta=(2, 1, 2), initial_state=(2, 2, 4, 4))
    raw = {"use_gate_in_kernel": True, "beta_is_logit": True, "output_final_state": True}
    return x | by_name(A_log=(2,), dt_bias=(8,)) | raw


def kda_layer() -> Arguments:
    x = by_name(x=(2, 192), weight=(3, 4, 64), conv_state=(3, 192, 3), raw_gate=(1, 2, 1, 64), raw_beta=(1, 2, 1))
    x |= by_name(A_log=(1,), dt_bias=(64,), state=(3, 1, 64, 64), output_gate=(2, 1, 64), norm_weight=(64,))
    x |= {name: x[name].to(bf16) for name in ("x", "output_gate")}
    return x | {"state_indices": torch.tensor([1, 2], dtype=torch.int32)}


def griffin(**x: Tensor) -> Any:
    module = SimpleNamespace(num_attention_heads=2, block_width=3, recurrent_states=None, **x)
    activations = module.__dict__.pop("activations")
    return recurrent_gemma.rglru_forward(module, activations, torch.arange(4)[None]), module.recurrent_states


def griffin_arguments() -> Arguments:
    gates = {"input_gate_weight": (2, 3, 3), "input_gate_bias": (2, 3), "recurrent_gate_weight": (2, 3, 3)}
    return by_name(activations=(2, 4, 6), **gates, recurrent_gate_bias=(2, 3), recurrent_param=(6,))


HYENA = {"x1": (2, 4, 6), "x2": (2, 4, 6), "v": (2, 4, 6)}
FFT = {"u": (2, 4, 6), "k": (4, 1, 6), "D": (4,)}
POLES = {"v": complexes(2, 4), "z": complexes(5, seed=1), "w": complexes(4, seed=2)}
SUMS = {"v": complexes(2, 4), "x": -complexes(4, seed=1).abs() + 0j, "L": 5}
DECODE, CONV, STEP = "fused_decode", "causal_conv1d_update", "selective_state_update"
# Calls by function.
CALLS: dict[Function, list[Call]] = {
    gdn_cuda.gdn_prefill_layer: [
        call_of(gdn_cuda.gdn_prefill_layer, prompts, ("conv_pool", "state_pool"), "gdn_prefill_layer"),
        call_of(gdn_cuda.gdn_prefill_layer, sequences),
    ],
    gdn_cuda.kda_prefill_layer: [
        call_of(gdn_cuda.kda_prefill_layer, kda_prompts, ("conv_pool", "state_pool"), "kda_prefill_layer"),
    ],
    gdn_cuda.commit_replay: [call_of(commit, committed, ("state_pool", "keys", "updates", "decays"), "replay_decode")],
    gdn_cuda.ssd_commit_replay: [
        call_of(commit_ssd, committed_ssd, ("state_pool", "x_ring", "B_ring", "delta_ring"), "ssd_replay_decode")
    ],
    gdn_cuda.fft_causal_conv: [call_of(gdn_cuda.fft_causal_conv, lambda: by_name(u=(2, 4, 6), k=(4, 6), D=(4,)))],
    gdn_cuda.split_projections: [call_of(gdn_cuda.split_projections, lambda: by_name(z=(2, 12, 5)))],
    gdn_cuda.toeplitz_solve: [call_of(gdn_cuda.toeplitz_solve, lambda: toeplitz() | {"r": toeplitz()["c"] + 0.1})],
    gdn_cuda.toeplitz_solve_symmetric: [call_of(gdn_cuda.toeplitz_solve_symmetric, toeplitz)],
    gdn_cuda.gs_compute_generators: [
        call_of(gdn_cuda.gs_compute_generators, lambda: {"c": toeplitz()["c"], "r": toeplitz()["c"] + 0.1})
    ],
    gdn_cuda.toeplitz_inverse_apply: [call_of(gdn_cuda.toeplitz_inverse_apply, lambda: by_name(gs_u=(5,), gs_v=(5,), x=(5,)))],
    gdn_cuda.toeplitz_to_cauchy: [call_of(gdn_cuda.toeplitz_to_cauchy, lambda: by_name(c=(5,), r=(5,)))],
    gdn_cuda.displacement_matvec: [call_of(gdn_cuda.displacement_matvec, lambda: by_name(G=(5, 2), H=(5, 2), x=(5,)))],
    conv_names.causal_conv1d_fn: [
        call_of(conv_names.causal_conv1d_fn, lambda: convolution(initial_states=(2, 4, 2))),
        call_of(conv_names.causal_conv1d_fn, lambda: convolution(final_states_out=(2, 4, 2)), ("final_states_out",)),
    ],
    conv_names.causal_conv1d_ref: [
        call_of(
            conv_names.causal_conv1d_ref, lambda: by_name(x=(2, 4, 6), weight=(4, 3), bias=(4,)) | {"return_final_states": True}
        )
    ],
    conv_names.causal_conv1d_varlen_states: [
        call_of(
            conv_names.causal_conv1d_varlen_states,
            lambda: by_name(x=(6, 4)) | {"cu_seqlens": torch.tensor([0, 2, 6]), "state_len": 3},
        )
    ],
    mamba_ssm.selective_scan_fn: [call_of(mamba_ssm.selective_scan_fn, scan_arguments)],
    mamba_ssm.mamba_inner_fn: [call_of(mamba_ssm.mamba_inner_fn, inner_arguments)],
    mamba_ssm.mamba_inner_ref: [call_of(mamba_ssm.mamba_inner_ref, inner_arguments)],
    mamba_ssm.mamba_chunk_scan_combined: [
        call_of(mamba_ssm.mamba_chunk_scan_combined, chunk_scan_arguments),
        call_of(mamba_ssm.mamba_chunk_scan_combined, varlen_arguments, (), "ssd_summary"),
    ],
    mamba_ssm.mamba_chunk_scan: [call_of(mamba_ssm.mamba_chunk_scan, lambda: ssd_arguments() | {"chunk_size": 2})],
    mamba_ssm.ssd_selective_scan: [
        call_of(mamba_ssm.ssd_selective_scan, ssd_arguments),
        call_of(mamba_ssm.ssd_selective_scan, lambda: ssd_arguments() | {"dt_bias": real(2, 3)}),
    ],
    mamba_ssm.mamba_conv1d_scan_ref: [call_of(mamba_ssm.mamba_conv1d_scan_ref, conv_scan_arguments)],
    mamba_ssm.mamba_split_conv1d_scan_combined: [
        call_of(mamba_ssm.mamba_split_conv1d_scan_combined, lambda everything=everything: split_arguments(everything))
        for everything in (False, True)
    ],
    mamba_ssm.mamba_split_conv1d_scan_ref: [call_of(mamba_ssm.mamba_split_conv1d_scan_ref, split_arguments)],
    lrnnx_scans.selective_scan_fn: [call_of(lrnnx_scans.selective_scan_fn, scan_arguments)],
    lrnnx_scans.simplified_scan_fn: [
        call_of(lrnnx_scans.simplified_scan_fn, lambda: simplified() | {"return_last_state": True})
    ],
    lrnnx_scans.s5_inner_fn: [call_of(lrnnx_scans.s5_inner_fn, lambda: simplified() | {"D": real(3)})],
    lrnnx_scans.s7_scan_fn: [call_of(lrnnx_scans.s7_scan_fn, lambda: s7() | {"return_last_state": True})],
    lrnnx_scans.s7_inner_fn: [call_of(lrnnx_scans.s7_inner_fn, s7_layer)],
    lrnnx_scans.rglru_scan_fn: [
        call_of(
            lrnnx_scans.rglru_scan_fn,
            lambda: {
                "u": real(2, 4, 6),
                "delta": real(2, 4, 6, seed=1).abs(),
                "A": real(4, 1).sigmoid(),
                "return_last_state": True,
            },
        )
    ],
    lrnnx_scans.simplified_state_update: [
        call_of(
            lrnnx_scans.simplified_state_update,
            lambda: {
                "state": complexes(2, 4),
                "x": real(2, 3),
                "dt": real(4).abs(),
                **{n: simplified()[n] for n in "ABC"},
                "D": real(3),
            },
            ("state",),
            "simplified_state_update",
        )
    ],
    structured_functions.cauchy_naive: [
        call_of(structured_functions.cauchy_naive, lambda conj=conj: POLES | {"conj": conj}) for conj in (True, False)
    ],
    structured_functions.cauchy_mult_torch: [
        call_of(structured_functions.cauchy_mult_torch, lambda pairs=pairs: POLES | {"symmetric": pairs})
        for pairs in (True, False)
    ],
    structured_functions.log_vandermonde: [
        call_of(structured_functions.log_vandermonde, lambda conj=conj: SUMS | {"conj": conj}) for conj in (True, False)
    ],
    structured_functions.log_vandermonde_fast: [call_of(structured_functions.log_vandermonde_fast, lambda: SUMS)],
    structured_functions.log_vandermonde_cuda: [
        call_of(structured_functions.log_vandermonde_cuda, lambda: {"v": SUMS["v"], "z": SUMS["x"], "L": 5})
    ],
    vortex.hcs_conv: [
        call_of(vortex.hcs_conv, lambda taps=taps: by_name(**HYENA, weight=(4, 1, taps), bias=(4,))) for taps in (3, 40)
    ],
    vortex.hcm_fft_conv: [call_of(vortex.hcm_fft_conv, lambda: by_name(**FFT) | {"dropout_mask": None})],
    vortex.fftconv_func: [
        call_of(vortex.fftconv_func, lambda: by_name(**FFT) | {"dropout_mask": None, "k_rev": real(4, 6, seed=7)})
    ],
    vortex.hcl_fft_conv: [
        call_of(
            vortex.hcl_fft_conv, lambda: by_name(h=(1, 4, 6), x1v=(2, 4, 6), x2=(2, 4, 6), D=(4,)) | {"L": 6, "fft_size": 12}
        )
    ],
    hotdog.cauchy_kernel_forward: [
        call_of(
            hotdog.cauchy_kernel_forward,
            lambda: {"out": real(2, 5), "v": real(2, 4), "omega": real(5, seed=1), "lambd": real(4, seed=2)},
            ("out",),
            "cauchy_kernel_forward",
        )
    ],
    fla_names.causal_conv1d: [
        call_of(
            fla_names.causal_conv1d,
            lambda: by_name(x=(2, 6, 4), weight=(4, 3), bias=(4,), initial_state=(2, 4, 3)) | {"output_final_state": True},
        )
    ],
    fla_names.chunk_gated_delta_rule: [call_of(fla_names.chunk_gated_delta_rule, rule)],
    fla_names.fused_recurrent_gated_delta_rule: [call_of(fla_names.fused_recurrent_gated_delta_rule, rule)],
    fla_names.fused_kda_gate: [
        call_of(fla_names.fused_kda_gate, lambda bound=bound: by_name(**KDA_GATE) | {"lower_bound": bound})
        for bound in (None, -5.0)
    ],
    fla_names.chunk_kda: [call_of(fla_names.chunk_kda, kda_rule)],
    fla_names.fused_recurrent_kda: [call_of(fla_names.fused_recurrent_kda, kda_rule, (), "recurrent_forward")],
    fla_names.naive_recurrent_kda: [call_of(fla_names.naive_recurrent_kda, kda_rule)],
    attention_gym.chunk_gdn: [call_of(attention_gym.chunk_gdn, gym_rule)],
    recurrent_gemma.rglru_forward: [call_of(griffin, griffin_arguments)],
    flashinfer.chunk_gated_delta_rule: [call_of(flashinfer.chunk_gated_delta_rule, flashinfer_prefill, (), "chunked_forward")],
    flashinfer.gated_delta_rule_decode: [call_of(flashinfer.gated_delta_rule_decode, flashinfer_decode, ("state",), DECODE)],
    flashinfer.gated_delta_rule_decode_pretranspose: [
        call_of(flashinfer.gated_delta_rule_decode_pretranspose, flashinfer_decode, ("state",), DECODE)
    ],
    flashinfer.gated_delta_rule_mtp: [call_of(flashinfer.gated_delta_rule_mtp, flashinfer_drafts, ("initial_state",), DECODE)],
    flashinfer.recurrent_kda: [call_of(flashinfer.recurrent_kda, kda_tokens, ("initial_state",), DECODE)],
    flashinfer.fused_kda_decode: [call_of(flashinfer.fused_kda_decode, kda_layer, ("conv_state", "state"), "kda_decode_layer")],
}
for _function in (structured_functions.cauchy_mult, structured_functions.cauchy_mult_keops):
    CALLS[_function] = [call_of(_function, lambda: POLES)]
for _function in (conv_names.causal_conv1d_update, conv_names.causal_conv1d_update_ref):
    CALLS[_function] = [
        call_of(_function, lambda: by_name(x=(2, 4), conv_state=(2, 4, 2), weight=(4, 3), bias=(4,)), ("conv_state",), CONV)
    ]
for _function in (mamba_ssm.selective_state_update, lrnnx_scans.selective_state_update, lrnnx_scans.selective_state_update_ref):
    CALLS[_function] = [call_of(_function, step_arguments, ("state",), STEP)]
EACH_CALL = [(f"{function.__module__}.{function.__name__}", call) for function, calls in CALLS.items() for call in calls]


@pytest.mark.parametrize("call", [call for _, call in EACH_CALL], ids=[name for name, _ in EACH_CALL])
def test_functions_without_examples(call: Call) -> None:
    assert not lost(call)


def public_functions() -> dict[Function, str]:
    """The functions of the package, of compat's modules and of FlashInfer's names, each once."""
    found = {getattr(gdn_cuda, name): name for name in gdn_cuda.__all__ if name not in WITHOUT_HISTORY}
    modules = [importlib.import_module(f"gdn_cuda.compat.{each.name}") for each in pkgutil.iter_modules(compat.__path__)]
    for module in (*modules, flashinfer):
        for name in getattr(module, "__all__", [x for x in vars(module) if x.endswith("_forward")]):
            if name not in WITHOUT_HISTORY:
                found.setdefault(getattr(module, name), f"{module.__name__}.{name}")
    return found


def test_every_public_function_has_a_case() -> None:
    tested = {case.function for case in EXAMPLES.values()} | set(CALLS)
    assert not [name for function, name in public_functions().items() if function not in tested]
    assert {name for name in DECLARATIONS if name in gdn_cuda.__all__} <= {case.function.__name__ for case in EXAMPLES.values()}
