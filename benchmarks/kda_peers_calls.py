"""Kimi Delta Attention of this library and of others: calls, which return an output (tokens, heads, 128) and states.

What a library expects its caller to do (norms, gates, sigmoid, casts) is done before the call and not timed; peers differ in
this, and the table names it. Native libraries are those that benchmarks/kda_peers_pack.py built.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import torch
from kda_peers_inputs import SCALE, D, Inputs, prepared
from torch import Tensor

import gdn_cuda
from gdn_cuda.operators.measure import Absent, Peer, import_peer

# ---- Prefill


def own(x: Inputs) -> Peer:
    """Norms, gates and sigmoid inside."""
    arguments = own_arguments(x)
    heads = x["value"].shape[1]

    def call() -> Any:
        with torch.no_grad():
            return gdn_cuda.chunked_forward(**arguments)

    return Peer(call, lambda returned: (returned[0].reshape(-1, heads, D), returned[1]))


def own_arguments(x: Inputs) -> Inputs:
    names = {"query": "query", "key": "key", "value": "value", "beta": "b", "gate": "a"}
    if x["packed"]:
        tokens = {name: x[given] for name, given in names.items()} | {"cu_seqlens": x["offsets"]}
    else:
        tokens = {name: x[given].unflatten(0, (x["batch"], -1)) for name, given in names.items()}
    gates = {name: x[name] for name in ("A_log", "dt_bias", "lower_bound")}
    return tokens | gates | {"state": x["state"], "use_qk_l2norm": True, "beta_is_logit": True}


def fla(x: Inputs) -> Peer:
    """Norms, gates and sigmoid inside; the state is fp32."""
    chunk_kda = import_peer("fla.ops.kda", "chunk_kda")
    arguments = fla_arguments(x)
    heads = x["value"].shape[1]

    def call() -> Any:
        with torch.no_grad():
            return chunk_kda(**arguments, **fla_options(x))

    return Peer(call, lambda returned: (returned[0].reshape(-1, heads, D), returned[1]))


def fla_arguments(x: Inputs) -> Inputs:
    names = {"q": "query", "k": "key", "v": "value", "g": "a", "beta": "b"}
    tokens = {name: x[ours].unflatten(0, (x["batch"], -1)) for name, ours in names.items()}
    return tokens | {"A_log": x["A_log"], "dt_bias": x["dt_bias"].flatten(), "initial_state": x["state"]}


def fla_options(x: Inputs) -> Inputs:
    bound = x["lower_bound"]
    packed = {"cu_seqlens": x["offsets"], "cu_seqlens_cpu": x["offsets"].cpu()} if x["packed"] else {}
    return packed | {
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "safe_gate": bound is not None and bound >= -5,
        "lower_bound": bound,
        "state_v_first": True,
    }


def flash_kda(x: Inputs) -> Peer:
    """Norms, gates and sigmoid inside; needs a lower bound."""
    if x["lower_bound"] is None:
        raise Absent("it needs a lower bound")
    forward = import_peer("flash_kda", "fwd")
    q, k, v, a, b = (x[name].unflatten(0, (x["batch"], -1)) for name in ("query", "key", "value", "a", "b"))
    out, states = torch.empty_like(v), torch.empty_like(x["state"])
    gates = (x["A_log"], x["dt_bias"], x["lower_bound"])
    rest = {"initial_state": x["state"], "final_state": states, "cu_seqlens": x["offsets"] if x["packed"] else None}

    def call() -> Any:
        forward(q, k, v, a, b, SCALE, out, *gates, **rest)
        return out.flatten(0, 1), states

    return Peer(call, lambda returned: returned)


def cudnn_raw(x: Inputs) -> Peer:
    """Norms, gates and sigmoid inside, of bf16 values that it first converts to fp32; needs a lower bound."""
    if x["lower_bound"] is None:
        raise Absent("without a lower bound it takes logarithms of decays")
    options = {
        "use_qk_l2norm_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "safe_gate": True,
        "gate_lower_bound": x["lower_bound"],
        "a_log": x["A_log"],
        "dt_bias": x["dt_bias"],
    }
    return _cudnn(x, ("query", "key", "value", "a", "b"), options)


def cudnn_given(x: Inputs) -> Peer:
    """The kernel alone: q and k normalised, log decays and beta in fp32, all before the call."""
    return _cudnn(prepared(x), ("query", "key", "value", "g", "beta"), {})


def _cudnn(x: Inputs, names: tuple[str, ...], options: Inputs) -> Peer:
    attention = import_peer("cudnn.linear_attention.ops", "kimi_delta_attention")
    tokens, offsets = [x[name] for name in names], x["offsets"].int()
    options = options | {"initial_state": x["state"], "output_final_state": True, "plan_name": "kda_hopper_cuda"}

    def call() -> Any:
        with torch.no_grad():
            return attention(*tokens, offsets, **options)

    return Peer(call, lambda returned: returned)


def cudnn_cute(x: Inputs) -> Peer:
    """cuDNN's other Hopper kernel, compiled beforehand for some shapes; inputs as `cudnn_given`'s."""
    x = prepared(x)
    tokens, heads, _ = x["value"].shape
    count = x["offsets"].numel() - 1
    name = f"cudnn_kda_{tokens}_{heads}_{count}"
    kernel = cute_kernel(name)
    chunks = (tokens // 16 + count + 1) * heads
    maps = count * heads * json.loads(native("kda_cute.json").read_text())[name]

    def empty(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=x["value"].device)

    rows = [empty(chunks * 16, D) for _ in range(4)]
    decayed_keys, solved_values = rows[2:]
    scores, decays = empty(chunks * 16, 16), empty(chunks, D, dtype=torch.float32)
    before, after = (empty(maps, D, D, dtype=torch.float32) for _ in range(2))
    products = empty(maps, D, D)
    out, states = torch.empty_like(x["value"]), torch.empty_like(x["state"])
    given = [x[name] for name in ("query", "key", "value", "g", "beta")]
    scratch = [*rows, scores, decays, decayed_keys.t(), solved_values.t(), before, products, products.reshape(-1, D).t(), after]
    arguments = [*given, x["offsets"].int(), x["state"], *scratch, out, states]

    def call() -> Any:
        kernel(*arguments)
        return out, states

    return Peer(call, lambda returned: returned)


def cute_kernel(name: str) -> Any:
    module = import_peer("tvm_ffi", "load_module")(str(native("libkda_cute.so")))
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise Absent("not compiled for this shape") from error


def native(name: str) -> Path:
    found = next((Path(folder) / name for folder in sys.path if (Path(folder) / name).exists()), None)
    if found is None:
        raise Absent(f"no {name} in PYTHONPATH")
    return found


PREFILL = {
    "gdn_cuda": own,
    "FlashKDA": flash_kda,
    "cuDNN": cudnn_raw,
    "cuDNN, g given": cudnn_given,
    "cuDNN CuTe, g given": cudnn_cute,
    "FLA": fla,
}


# ---- Forward and backward: a call of both, and its gradients of q, k, v, the gate, beta and the states


def own_training(x: Inputs) -> Peer:
    arguments = own_arguments(x)
    names = ("query", "key", "value", "gate", "beta", "A_log", "dt_bias", "state")
    leaves = {name: arguments[name].detach().clone().requires_grad_() for name in names}
    grads = [x["grad_out"].view_as(arguments["value"]), x["grad_states"]]

    def call() -> Any:
        return torch.autograd.grad(gdn_cuda.chunked_forward(**(arguments | leaves)), list(leaves.values()), grads)

    def read(found: Any) -> Any:
        return [*(t.view_as(x[name]) for t, name in zip(found, ("query", "key", "value", "a", "b"), strict=False)), found[-1]]

    return Peer(call, read)


def fla_training(x: Inputs) -> Peer:
    chunk_kda = import_peer("fla.ops.kda", "chunk_kda")
    arguments = {name: t.detach().clone().requires_grad_() for name, t in fla_arguments(x).items()}
    options = fla_options(x)
    grads = [x["grad_out"].unflatten(0, (x["batch"], -1)), x["grad_states"]]

    def call() -> Any:
        return torch.autograd.grad(chunk_kda(**arguments, **options), list(arguments.values()), grads)

    def read(found: Any) -> Any:
        return [*(t.flatten(0, 1) for t in found[:5]), found[-1]]

    return Peer(call, read)


def cudnn_training(x: Inputs) -> Peer:
    """Norms, gates and sigmoid outside, and their gradients."""
    attention = import_peer("cudnn.linear_attention.ops", "kimi_delta_attention")
    made = prepared(x)
    leaves = [made[name].detach().clone().requires_grad_() for name in (*TRAINED, "state")]
    offsets = x["offsets"].int()
    grads = [x["grad_out"], x["grad_states"]]

    def call() -> Any:
        out = attention(*leaves[:5], offsets, initial_state=leaves[5], output_final_state=True, plan_name="kda_hopper_cuda")
        return torch.autograd.grad(out[:2], leaves, grads)

    return Peer(call, list)


TRAINED = ("query", "key", "value", "g", "beta")
TRAINING = {"gdn_cuda": own_training, "cuDNN, g given": cudnn_training, "FLA": fla_training}


# ---- Decode: one token, states in a pool, in place


def own_layer(x: Inputs) -> Peer:
    """kda_decode_layer: convolutions, gates, step and norm."""
    arguments = {
        "conv_weight": x["weight"],
        "A_log": x["A_log"],
        "dt_bias": x["dt_bias"],
        "lower_bound": x["lower_bound"],
        "z": x["output_gate"].flatten(1),
        "norm_weight": x["norm_weight"],
        "conv_pool": x["conv_pool"],
        "state_pool": x["pool"],
        "state_indices": x["slots"],
    }

    def call() -> Any:
        return gdn_cuda.kda_decode_layer(x["x"], x["a"], x["b"], **arguments)

    return Peer(call, lambda returned: (returned.view_as(x["output_gate"]), x["pool"][x["slots"].long()]))


def fla_step(x: Inputs) -> Peer:
    """The step alone: norms, gates and sigmoid inside, the convolutions and the output's norm outside."""
    step = import_peer("fla.ops.kda.fused_recurrent", "fused_recurrent_kda_fwd")
    q, k, v, a, b = (x[name].unsqueeze(1) for name in ("query", "key", "value", "a", "b"))
    arguments = {
        "q": q,
        "k": k,
        "v": v,
        "g": a,
        "beta": b,
        "A_log": x["A_log"],
        "dt_bias": x["dt_bias"].flatten(),
        "initial_state": x["pool"],
        "ssm_state_indices": x["slots"],
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "lower_bound": x["lower_bound"],
        "state_v_first": True,
        "out": torch.empty_like(v),
    }
    return Peer(lambda: step(**arguments), lambda returned: (returned[0].squeeze(1), x["pool"][x["slots"].long()]))


def flashinfer_layer(x: Inputs) -> Peer:
    """fused_kda_decode, which FlashInfer offers on SM100 only: convolutions, gates, step and norm, compiled here for sm_90a."""
    if x["A_log"].numel() not in (12, 24, 32, 48, 96):
        raise Absent("its heads are 12, 24, 32, 48 or 96")
    kernel = cute_kernel("fi_kda_decode_bf16_lb" if x["pool"].dtype == torch.bfloat16 else "fi_kda_decode_f32_lb")
    out = torch.empty(1, *x["output_gate"].shape, dtype=torch.bfloat16, device=x["x"].device)
    arguments = [
        x["x"],
        x["weight"],
        x["conv_pool"],
        x["a"].unsqueeze(0),
        x["b"].unsqueeze(0),
        x["A_log"],
        x["dt_bias"].flatten(),
    ]
    arguments += [x["slots"], x["pool"], x["output_gate"], x["norm_weight"], out]

    def call() -> Any:
        kernel(*arguments)
        return out.squeeze(0), x["pool"]

    return Peer(call, lambda returned: (returned[0], returned[1][x["slots"].long()]))


def vllm_layer(x: Inputs) -> Peer:
    """_custom_ops.fused_kda_decode, by its launch function: convolutions, gates, step and norm."""
    if x["A_log"].numel() not in (12, 24, 48, 96) or x["pool"].dtype != torch.float32:
        raise Absent("its heads are 12, 24, 48 or 96, its states fp32")
    launch = ctypes.CDLL(str(native("libvllm_kda_decode.so"))).launch_kda_decode_many_heads_cuda
    launch.restype = None
    batch, heads, _ = x["output_gate"].shape
    out = torch.empty_like(x["output_gate"])

    def thirds(name: str) -> list[ctypes.c_void_p]:
        step = heads * D * (4 if name == "weight" else 1) * x[name].element_size()
        return [ctypes.c_void_p(x[name].data_ptr() + part * step) for part in range(3)]

    def at(tensor: Tensor) -> ctypes.c_void_p:
        return ctypes.c_void_p(tensor.data_ptr())

    none, integer, number = ctypes.c_void_p(0), ctypes.c_int, ctypes.c_float
    conv = x["conv_pool"]
    strides = (ctypes.c_int64 * 7)(
        *(x["x"].stride(0), x["b"].stride(0), x["output_gate"].stride(0)),
        *(conv.stride(0), x["pool"].stride(0), conv.stride(1), conv.stride(2)),
    )
    before = [*thirds("x"), *thirds("weight"), none, none, none, *thirds("conv_pool"), at(x["A_log"]), at(x["a"])]
    before += [at(x["dt_bias"]), at(x["b"]), at(x["output_gate"]), at(x["norm_weight"]), at(x["slots"]), none]
    before += [at(x["pool"]), at(out), integer(batch), integer(heads), integer(heads), *(ctypes.c_bool(True) for _ in range(4))]
    before += [number(x["lower_bound"]), number(SCALE), number(1e-5), strides]

    def call() -> Any:
        launch(*before, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        return out, x["pool"]

    return Peer(call, lambda returned: (returned[0], returned[1][x["slots"].long()]))


STEPS = {"gdn_cuda layer": own_layer, "FLA step": fla_step, "FlashInfer layer": flashinfer_layer, "vLLM layer": vllm_layer}
