"""Every tensor argument of every public function, replaced by an object that is not a strided tensor: the error names the
function that was called, not one that it is composed of, and the caller's name of the argument."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda.compat import attention_gym, causal_conv1d, fla, hotdog, lrnnx_scans, mamba_ssm, structured_functions, vortex
from gdn_cuda.layers.decode_layer import layer_arguments
from gdn_cuda.layers.kda_decode_layer import layer_arguments as kda_arguments
from gdn_cuda.operators import examples
from gdn_cuda.operators.examples import Arguments

MESSAGE = re.compile(r"(\w+): ([\w.]+(?:, [\w.]+)*): expected .+, got .+", re.DOTALL)
Make = Callable[[], Arguments]


def takes_tensors(function: Any) -> bool:
    annotations = [str(p.annotation) for p in inspect.signature(function).parameters.values()]
    return any(annotation.startswith("Tensor") for annotation in annotations)


def functions_of(module: Any) -> dict[str, Any]:
    """The functions of a module, without aliases."""
    named = {name: getattr(module, name) for name in getattr(module, "__all__", vars(module))}
    return {
        name: function
        for name, function in named.items()
        if inspect.isfunction(function) and function.__name__ == name and takes_tensors(function) and not name.startswith("_")
    }


# ---- Public functions: their first example, or the arguments below


def rows(*shape: int) -> Tensor:
    return torch.rand(*shape) + 0.1


def lines() -> Arguments:
    return {"c": torch.tensor([4.0, 1, 0]), "r": torch.tensor([4.0, 2, 1])}


def buffers() -> gdn_cuda.ReplayBuffers:
    return gdn_cuda.replay_buffers(torch.zeros(2, 2, 8, 8), 2, 2)


def by_replay() -> Arguments:
    x = {name: torch.randn(2, 1, 2, 8).bfloat16() for name in ("query", "key", "value")}
    gates = {"a": torch.randn(2, 1, 2), "b": torch.randn(2, 1, 2), "A_log": torch.zeros(2), "dt_bias": torch.zeros(2)}
    return x | gates | {"state_pool": torch.zeros(2, 2, 8, 8), "num_accepted_tokens": torch.zeros(2).int(), "replay": buffers()}


def prompts() -> Arguments:
    return layer_arguments(2, 3, 0, "split") | {"state_indices": torch.tensor([1, 2])}


def kda_prompts() -> Arguments:
    x = kda_arguments(2, 0) | {"state_indices": torch.tensor([1, 2]), "lower_bound": -5.0, "key_heads": 1}
    return x | {name: torch.stack([x[name]] * 3, 1) for name in ("qkv", "a", "b", "z")}


MADE: dict[str, Make] = {
    "fft_causal_conv": lambda: {"u": rows(1, 2, 5), "k": rows(2, 3), "D": rows(2)},
    "split_projections": lambda: {"z": rows(1, 6, 4)},
    "replay_buffers": lambda: {"state_pool": torch.zeros(2, 2, 8, 8), "steps": 2, "heads_k": 2},
    "ring_buffers": lambda: {"state_pool": torch.zeros(2, 2, 8, 8), "window": 2, "heads_k": 2},
    "commit_replay": lambda: {
        "state_pool": torch.zeros(2, 2, 8, 8),
        "buffers": buffers(),
        "state_indices": torch.tensor([0, 1]),
        "num_accepted_tokens": torch.tensor([1, 0]),
    },
    "ssd_replay_buffers": lambda: {"state_pool": torch.zeros(2, 2, 8, 8), "window": 2, "groups": 1},
    "ssd_commit_replay": lambda: {
        "state_pool": torch.zeros(2, 2, 8, 8),
        "buffers": gdn_cuda.ssd_replay_buffers(torch.zeros(2, 2, 8, 8), 2, 1),
        "A": -rows(2),
        "state_indices": torch.tensor([0, 1]),
        "num_accepted_tokens": torch.tensor([1, 0]),
    },
    "gdn_prefill_layer": prompts,
    "kda_prefill_layer": kda_prompts,
    "cauchy_pin_l2": lambda: {"omega": rows(3), "lambd": rows(3)},
    "toeplitz_solve": lambda: lines() | {"b": rows(3)},
    "toeplitz_solve_symmetric": lambda: {"c": torch.tensor([4.0, 1, 0]), "b": rows(3)},
    "gs_compute_generators": lines,
    "toeplitz_inverse_apply": lambda: {"gs_u": torch.tensor([0.5, 0]), "gs_v": torch.tensor([0, 0.5]), "x": rows(2)},
    "toeplitz_to_cauchy": lines,
    "displacement_matvec": lambda: {"G": rows(3, 1), "H": rows(3, 1), "x": rows(3)},
}


def first_examples() -> Iterator[tuple[Any, Make]]:
    seen = set()
    for case in examples.load().values():
        if case.function not in seen:
            seen.add(case.function)
            yield case.function, lambda case=case: case.make(2, 3, 0)  # type: ignore[misc]


PUBLIC = functions_of(gdn_cuda)
CALLS: dict[str, tuple[Any, Make]] = {
    function.__name__: (function, make) for function, make in first_examples() if function in PUBLIC.values()
}
CALLS |= {name: (PUBLIC[name], make) for name, make in MADE.items()}
CALLS["fused_decode, by replay"] = gdn_cuda.fused_decode, by_replay


def with_codes(make: Make) -> Arguments:
    x = make()
    codes, scales = gdn_cuda.convert_states(x["state_pool"], torch.int8)
    return x | {"state_pool": codes, "state_scales": scales}


for each in ("gdn_decode_layer", "kda_decode_layer"):
    CALLS[f"{each}, int8"] = PUBLIC[each], partial(with_codes, CALLS[each][1])

# ---- The same functions under the names of other libraries


def scanned() -> Arguments:
    coefficients = {"A": -rows(4, 3), "B": rows(2, 3, 5), "C": rows(2, 3, 5), "D": rows(4)}
    return {name: rows(2, 4, 5) for name in ("u", "delta", "z")} | coefficients | {"delta_bias": rows(4)}


def stepped() -> Arguments:
    x = {"state": rows(2, 4, 3), "x": rows(2, 4), "dt": rows(2, 4), "A": -rows(4, 3), "B": rows(2, 3), "C": rows(2, 3)}
    return x | {"D": rows(4), "z": rows(2, 4), "dt_bias": rows(4)}


def simplified() -> Arguments:
    x = {"u": rows(2, 3, 5) + 0j, "delta": rows(4), "A": -rows(4) + 0j, "B": rows(4, 3) + 0j, "C": rows(3, 4) + 0j}
    return x | {"deltaA": rows(4)}


def simplified_step() -> Arguments:
    x = {"state": rows(2, 4) + 0j, "x": rows(2, 3), "dt": rows(4), "A": -rows(4) + 0j, "B": rows(4, 3) + 0j}
    return x | {"C": rows(3, 4) + 0j, "D": rows(3), "deltaA": rows(4)}


def sums(points: str, poles: str) -> Make:
    return lambda: {"v": rows(3) + 0j, points: rows(5) + 0j, poles: -rows(3) + 0j}


def convolved() -> Arguments:
    return {"x": rows(2, 4, 6), "weight": rows(4, 3), "bias": rows(4)}


def conv_step() -> Arguments:
    return {"x": rows(2, 4), "conv_state": rows(2, 4, 3), "weight": rows(4, 3), "bias": rows(4)}


def gated() -> Arguments:
    return {name: rows(1, 2, 6) for name in ("x1", "x2", "v")} | {"weight": rows(2, 1, 3), "bias": rows(2)}


def block() -> Arguments:
    x = {"xz": rows(1, 8, 5), "conv1d_weight": rows(4, 1, 3), "conv1d_bias": rows(4), "x_proj_weight": rows(8, 4)}
    x |= {"delta_proj_weight": rows(4, 2), "out_proj_weight": rows(4, 4), "out_proj_bias": rows(4), "A": -rows(4, 3)}
    return x | {"D": rows(4), "delta_bias": rows(4)}


def s7_layer() -> Arguments:
    x = {"hidden_states": rows(1, 5, 2), "in_proj_weight": rows(2, 2), "x_proj_weight": rows(3 + 6 + 6 + 2 + 3, 2)}
    return x | {"gate_proj_weight": rows(2, 2), "d_state": 3, "base_params": rows(3)}


def fftconv() -> Arguments:
    return {"u": rows(1, 2, 6), "k": rows(2, 1, 4), "D": rows(2), "dropout_mask": None, "gelu": False}


def s7_tensors() -> Arguments:
    return {"u": rows(1, 2, 5), "A": rows(1, 3, 5), "B": rows(1, 3, 2, 5), "C": rows(1, 2, 3, 5), "bias": rows(1, 3, 5)}


def rule() -> Arguments:
    x = {"q": rows(2, 5, 1, 4), "k": rows(2, 5, 1, 4), "v": rows(2, 5, 2, 3), "g": -rows(2, 5, 2), "beta": rows(2, 5, 2)}
    x |= {"initial_state": rows(2, 2, 4, 3), "A_log": rows(2), "dt_bias": rows(2), "use_gate_in_kernel": True}
    return x


def gym_rule() -> Arguments:
    x = {name: y for name, y in rule().items() if name in ("q", "k", "v", "beta", "initial_state")}
    return x | {"gate": -rows(2, 5, 2)}


COMPAT_MADE: dict[Any, dict[str, Make]] = {
    causal_conv1d: {
        "causal_conv1d_fn": convolved,
        "causal_conv1d_ref": convolved,
        "causal_conv1d_update": conv_step,
        "causal_conv1d_update_ref": conv_step,
        "causal_conv1d_varlen_states": lambda: {"x": rows(5, 4), "cu_seqlens": torch.tensor([0, 2, 5]), "state_len": 3},
    },
    fla: {"chunk_gated_delta_rule": rule, "fused_recurrent_gated_delta_rule": rule},
    attention_gym: {"chunk_gdn": gym_rule},
    mamba_ssm: {
        "selective_scan_fn": scanned,
        "selective_state_update": stepped,
        "mamba_inner_fn": block,
        "mamba_inner_ref": block,
    },
    lrnnx_scans: {
        "selective_scan_fn": lambda: scanned() | {"deltaA": rows(2, 4, 5)},
        "simplified_scan_fn": simplified,
        "s5_inner_fn": lambda: simplified() | {"D": rows(3)},
        "s7_scan_fn": s7_tensors,
        "s7_inner_fn": s7_layer,
        "rglru_scan_fn": lambda: {"u": rows(1, 2, 5), "delta": rows(1, 2, 5), "A": 0.5 * rows(2, 1)},
        "selective_state_update": lambda: stepped() | {"deltaA": rows(2, 4)},
        "selective_state_update_ref": lambda: stepped() | {"deltaA": rows(2, 4)},
        "simplified_state_update": simplified_step,
    },
    structured_functions: {
        "cauchy_naive": sums("z", "w"),
        "cauchy_mult": sums("z", "w"),
        "cauchy_mult_torch": lambda: {"v": rows(2, 4) + 0j, "z": rows(5) + 0j, "w": -rows(2, 4) + 0j},
        "cauchy_mult_keops": sums("z", "w"),
        "log_vandermonde": lambda: {"v": rows(3) + 0j, "x": -rows(3) + 0j, "L": 4, "conj": False},
        "log_vandermonde_cuda": lambda: {"v": rows(3) + 0j, "z": -rows(3) + 0j, "L": 4},
        "log_vandermonde_fast": lambda: {"v": rows(3) + 0j, "x": -rows(3) + 0j, "L": 4},
    },
    vortex: {
        "hcs_conv": gated,
        "hcm_fft_conv": fftconv,
        "fftconv_func": lambda: fftconv() | {"k_rev": rows(2, 4)},
        "hcl_fft_conv": lambda: {
            "h": rows(1, 2, 6),
            "x1v": rows(1, 2, 6),
            "x2": rows(1, 2, 6),
            "D": rows(2),
            "L": 6,
            "fft_size": 12,
        },
    },
    hotdog: {
        "cauchy_kernel_forward": lambda: {"out": torch.zeros(5), "v": rows(3), "omega": rows(5), "lambd": -rows(3)},
    },
}
OWN = {module: {n: f for n, f in functions_of(module).items() if f.__module__ == module.__name__} for module in COMPAT_MADE}
COMPAT_CALLS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": (OWN[module][name], make)
    for module, made in COMPAT_MADE.items()
    for name, make in made.items()
}


def test_every_function_that_takes_tensors_is_called() -> None:
    assert {name.partition(",")[0] for name in CALLS} == set(PUBLIC)
    for module, made in COMPAT_MADE.items():
        assert set(made) == set(OWN[module]), module.__name__


# ---- Arguments that are not strided tensors


def wrong(x: Tensor) -> Iterator[tuple[str, Any]]:
    yield "None", None
    yield "a list", [1.0, 2.0]
    yield "a number", 3.0
    if x.dim() == 0:
        return
    yield "sparse", x.to_sparse()
    yield "nested", torch.nested.nested_tensor([x.detach().contiguous()] * 2)
    if x.dtype == torch.float32:
        yield "mkldnn", x.detach().contiguous().to_mkldnn()
        yield "quantized", torch.quantize_per_tensor(x.detach().contiguous(), 0.1, 0, torch.qint8)


def faults(function: Any, make: Make, accepted: list[str]) -> Iterator[str]:
    parameters = inspect.signature(function).parameters
    for argument, x in make().items():
        if not isinstance(x, Tensor):
            continue
        for what, y in wrong(x):
            if y is None and ("None" in str(parameters[argument].annotation) or parameters[argument].default is None):
                continue
            try:
                function(**make() | {argument: y})
            except Exception as error:
                found = MESSAGE.fullmatch(str(error))
                named = found is not None and found[1] == function.__name__ and argument in found[2].split(", ")
                if not named or not isinstance(error, ValueError):
                    yield f"{argument}, {what}: {type(error).__name__}: {str(error)[:200]}"
            else:
                accepted.append(f"{argument}, {what}")


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("name", [*CALLS, *COMPAT_CALLS])
def test_an_argument_that_is_not_a_strided_tensor_is_refused_by_name(name: str, grad: bool) -> None:
    function, make = (CALLS | COMPAT_CALLS)[name]
    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("ignore")  # torch warns that nested and quantized tensors are in beta
        if name != "cauchy_pin_l2":
            function(**make())
        accepted: list[str] = []
        assert not list(faults(function, make, accepted))
    if name in CALLS:  # functions under other libraries' names hand some arguments to torch alone, which takes more
        assert not accepted


# ---- Other errors of composed functions: they name the caller's function and the caller's arguments


def short(x: Tensor) -> Tensor:
    return x.narrow(-1, 0, x.shape[-1] - 1)


@pytest.mark.parametrize("name", CALLS)
def test_errors_of_composed_functions_name_arguments_of_theirs(name: str) -> None:
    """A last dimension that is one shorter, complex values, another device."""
    function, make = CALLS[name]
    parameters = inspect.signature(function).parameters
    wrong_names = []
    for argument, x in make().items():
        if not isinstance(x, Tensor):
            continue
        for y in [*([short(x)] if x.dim() and x.shape[-1] else []), x.to("meta"), x.to(torch.complex64)]:
            try:
                function(**make() | {argument: y})
            except ValueError as error:
                found = MESSAGE.fullmatch(str(error))
                known = found is not None and all(each.partition(".")[0] in parameters for each in found[2].split(", "))
                if not known or (found is not None and found[1] != function.__name__):
                    wrong_names.append(f"{argument}: {error}")
            except RuntimeError:  # meta tensors among CPU tensors are torch's to refuse where all others are real
                pass
    assert not wrong_names
