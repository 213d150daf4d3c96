"""FLA (fla-core): a backend of its dispatch for `chunk_gated_delta_rule`, `chunk_kda` and `fused_recurrent_kda`;
`fused_recurrent_gated_delta_rule`, its convolutions and its gated norm by name.

    fla.install()

FLA asks a backend at every call whether it takes it. Calls that need gradients are taken, also of
`fused_recurrent_gated_delta_rule`, for which FLA has none. Context parallel calls and those on a CPU run FLA's own kernels;
`install(cpu=True)` takes CPU tensors too, for which FLA has none. FLA_GDN_CUDA=0 switches the backend off.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..compat import fla as names
from ..hosts import verified
from ..hosts.replaced import Replaced
from .counted import Declined, count, counted
from .fla_modules import FUNCTIONS

_CHUNK = "fla.ops.gated_delta_rule.chunk:chunk_gated_delta_rule"
_BY_TOKEN = "fla.ops.gated_delta_rule.fused_recurrent:fused_recurrent_gated_delta_rule"
_CHUNK_KDA = "fla.ops.kda.chunk:chunk_kda"
_KDA_BY_TOKEN = "fla.ops.kda.fused_recurrent:fused_recurrent_kda_fwd"
VERSIONS: verified.Versions = {"0.6.0": "run"}
_TARGETS = {
    "fla.backends:register": "entry_point, *, backend=None, verifier=None, env_var=None",
    "fla.backends:BaseBackend.verify": "self, function_name, *args, **kwargs",
    "fla.backends:BaseBackend.get_implementation": "self, function_name",
    _CHUNK: "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, "
    "use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, "
    "chunk_indices=None, cp_context=None, **kwargs",
    _BY_TOKEN: "q, k, v, g=None, gk=None, gv=None, beta=None, scale=None, initial_state=None, output_final_state=False, "
    "use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None, dt_bias=None, use_beta_sigmoid_in_kernel=False, "
    "allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, **kwargs",
    _CHUNK_KDA: "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, "
    "use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False, lower_bound=None, "
    "disable_recompute=False, return_intermediate_states=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, "
    "cp_context=None, use_graph=False, max_num_seqs=None, **kwargs",
    _KDA_BY_TOKEN: "q, k, v, g, beta, A_log=None, dt_bias=None, initial_state=None, scale=None, output_final_state=False, "
    "inplace_final_state=True, state_v_first=False, cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None, "
    "use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, "
    "lower_bound=None, out=None, **kwargs",
    **{target: expected for target, (expected, _) in FUNCTIONS.items()},
}
HOST = verified.Host("fla-core", "fla", VERSIONS, {"": _TARGETS})

_replaced = Replaced()
_takes_cpu = False


# ---- The calls


def _decline_device(q: Tensor) -> None:
    if not (q.is_cuda or (_takes_cpu and q.device.type == "cpu")):
        raise Declined(f"tensors are on {q.device.type}")


def _decline_context(q: Tensor, x: dict[str, Any]) -> None:
    _decline_device(q)
    if x.get("cp_context") is not None:
        raise Declined("cp_context is given")


def _verify_chunk(x: dict[str, Any]) -> None:
    """Raises Declined for a call that is FLA's own; likewise the functions below."""
    _decline_context(x["q"], x)
    if x.get("use_gate_in_kernel") and x.get("A_log") is None:
        raise Declined("use_gate_in_kernel is given without A_log")


def _verify_chunk_kda(x: dict[str, Any]) -> None:
    _decline_context(x["q"], x)
    if x.get("use_gate_in_kernel") and x.get("A_log") is None and x.get("lower_bound") is None:
        raise Declined("use_gate_in_kernel is given without A_log and lower_bound")


def _verify_kda_by_token(x: dict[str, Any]) -> None:
    _decline_device(x["q"])
    for name in ("ssm_state_indices", "num_accepted_tokens", "out"):
        if x.get(name) is not None:
            raise Declined(f"{name} is given")
    if x["inplace_final_state"]:
        raise Declined("the initial state is written")


def _kda_by_token(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    scale: float | None = None,
    output_final_state: bool = False,
    inplace_final_state: bool = True,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    given = (q, k, v, g, beta, A_log, dt_bias, scale, initial_state, output_final_state)
    return names.fused_recurrent_kda(*given, **options)


def _by_token(q: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    _decline_device(q)
    return names.fused_recurrent_gated_delta_rule(q, *args, **kwargs)


def _where_taken(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a convolution or norm. These have gradients, so only the device decides whether ours runs."""

    @functools.wraps(function)
    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        _decline_device(x)
        return function(x, *args, **kwargs)

    return call


_BY_NAME = {_BY_TOKEN: _by_token} | {target: _where_taken(function) for target, (_, function) in FUNCTIONS.items()}

# ---- The backend

# What FLA's dispatch asks a backend for: by function, which calls are FLA's own, and ours.
_DISPATCHED: dict[str, tuple[Callable[[dict[str, Any]], None], Callable[..., Any]]] = {
    _CHUNK: (_verify_chunk, names.chunk_gated_delta_rule),
    _CHUNK_KDA: (_verify_chunk_kda, names.chunk_kda),
    _KDA_BY_TOKEN: (_verify_kda_by_token, _kda_by_token),
}


def _counted_as(target: str) -> str:
    return f"fla.{target.partition(':')[2].removesuffix('_fwd')}"


def _verifier(target: str) -> Callable[..., tuple[bool, str | None]]:
    verify, name, parameters = _DISPATCHED[target][0], _counted_as(target), inspect.signature(_default(target))

    def verifier(self: Any, *args: Any, **kwargs: Any) -> tuple[bool, str | None]:
        given = parameters.bind(*args, **kwargs)
        given.apply_defaults()
        try:
            verify(given.arguments | given.arguments.get("kwargs", {}))
        except Declined as declined:
            count(name, str(declined))
            return False, str(declined)
        return True, None

    return verifier


def _implementation(target: str) -> Callable[..., Any]:
    call = counted(_counted_as(target), _DISPATCHED[target][1], _default(target))
    return lambda self, *args, **kwargs: call(*args, **kwargs)


@functools.cache
def _backend() -> type:
    from fla.backends import BaseBackend

    class GdnCuda(BaseBackend):
        """The backend stays registered; `uninstall` disables it."""

        backend_type = "gdn_cuda"
        package_name = "gdn_cuda"
        env_var = "FLA_GDN_CUDA"
        priority = 1  # before FlashQLA's 3, FlashKDA's 3 and the default 5

        def is_enabled(self) -> bool:
            return bool(_replaced) and super().is_enabled()

    for target in _DISPATCHED:
        function = target.partition(":")[2]
        setattr(GdnCuda, function, _implementation(target))
        setattr(GdnCuda, f"{function}_verifier", _verifier(target))
    return GdnCuda


def _default(target: str) -> Callable[..., Any]:
    """FLA's own function, without its dispatch."""
    return inspect.unwrap(getattr(*verified.owner_of(target)))


# ---- install and uninstall


def available() -> tuple[bool, str]:
    """Whether the functions to replace in an installed fla-core have the verified parameters; and its version, or why not."""
    return HOST.available()


@_replaced.whole()
def install(cpu: bool = False) -> tuple[str, ...]:
    """Imports FLA and registers the backend. Returns the names of functions that are replaced besides. A second call only
    changes `cpu`. Raises `Refused`, with nothing changed, if FLA differs from what was verified."""
    global _takes_cpu
    if not _replaced:
        HOST.require_imported()
        from fla.backends import register

        for entry_point in ("gated_delta_rule", "kda", getattr(*verified.owner_of(_CHUNK_KDA))):
            register(entry_point)(_backend())
        for target, function in _BY_NAME.items():
            theirs = getattr(*verified.owner_of(target))
            ours = counted(f"fla.{theirs.__name__}", function, theirs)
            for owner, name in verified.names_of(theirs, "fla"):
                _replaced.put(owner, name, ours)
    _takes_cpu = cpu
    return _replaced.names()


def uninstall() -> None:
    """Undoes `install`."""
    _replaced.undo()
