"""FLA's tests/ops/test_gdn.py, with the backend of `gdn_cuda.integrations.fla` in FLA's dispatch.

The tests compare outputs, final states and gradients; comparisons of either are counted. The reference is FLA's
naive_recurrent_gated_delta_rule, in torch. If a test compares two forms of one call (raw gates, logits, states [V, K]), both
run on gdn_cuda; outputs and states of the plain form are then also compared with that reference.

Tests of FlashQLA, another backend of that dispatch, run on our backend, without the check that FlashQLA was reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType
from typing import Any

import peers_cpu
import peers_plugin
import pytest
import torch
import torch.nn.functional as F

_OWN_PIECES = "a test of a kernel of FLA's that the integration leaves alone"
_VERIFIER = "a test of what FlashQLA's backend declines"
EXCLUDED = {
    "test_gate": _OWN_PIECES,
    "test_prepare_wy_repr_bwd_no_g": _OWN_PIECES,
    "test_flash_qla_verifier_rejects": _VERIFIER,
    "test_flash_qla_verifier_sm120_accepts_forward": _VERIFIER,
    "test_flash_qla_verifier_sm120_rejects_backward": _VERIFIER,
    "test_flash_qla_verifier_sm120_rejects_float16": _VERIFIER,
}
ONE_OF: dict[str, int] = {}
_TWO_FORMS = (
    "test_chunk_beta_sigmoid_in_kernel",
    "test_chunk_gate_in_kernel",
    "test_chunk_gate_in_kernel_gqa",
    "test_chunk_gate_in_kernel_varlen",
    "test_chunk_state_v_first",
    "test_fused_recurrent_beta_sigmoid_in_kernel",
    "test_fused_recurrent_gate_in_kernel",
    "test_fused_recurrent_gate_in_kernel_varlen",
    "test_fused_recurrent_state_v_first",
    "test_flash_qla_chunk_state_v_first",
)
_FORMS = ("use_gate_in_kernel", "use_beta_sigmoid_in_kernel", "state_v_first", "transpose_state_layout")
_test = ""


def prepare() -> None:
    from gdn_cuda.integrations import fla

    fla.install(cpu=peers_cpu.ON_CPU)


def adapt(module: ModuleType) -> None:
    module.IS_NPU = True  # otherwise tests of grouped heads are skipped, because a backend that is not installed lacks them
    module.assert_close = counted(module.assert_close, "fla")
    for name in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"):
        setattr(module, name, compared(getattr(module, name), module, "naive_recurrent_gated_delta_rule", _is_of_two_forms))
    module._flash_qla_run = lambda monkeypatch, **arguments: module.chunk_gated_delta_rule(**arguments)
    without_skips(module, "FlashQLA")


def without_skips(module: ModuleType, backend: str) -> None:
    """Runs the tests of another backend of the dispatch, which FLA skips if it is not installed."""
    for function in vars(module).values():
        marks = getattr(function, "pytestmark", None)
        if isinstance(marks, list):
            function.pytestmark = [mark for mark in marks if not str(mark.kwargs.get("reason", "")).startswith(backend)]


def _is_of_two_forms() -> bool:
    return _test in _TWO_FORMS


def counted(assert_close: Callable[..., None], peer: str) -> Callable[..., None]:
    def compare(name: str, *args: Any, **kwargs: Any) -> None:
        assert_close(name, *args, **kwargs)
        peers_plugin.note_comparison(peer, name.strip().startswith("d"))

    return compare


def compared(
    function: Callable[..., Any], module: ModuleType, naive: str, is_of_two_forms: Callable[[], bool]
) -> Callable[..., Any]:
    """Compares the plain form of a call with FLA's naive function, in tests that compare two forms of it."""

    def call(*args: Any, **given: Any) -> Any:
        output, state, *rest = function(*args, **given)
        if is_of_two_forms() and not any(given.get(form) for form in _FORMS):
            with torch.no_grad():
                expected, final = _naive(getattr(module, naive), **given)
                module.assert_close("o, naive", expected, output.detach(), 0.005)
                module.assert_close("ht, naive", final, state.detach(), 0.005)
        return output, state, *rest

    return call


def _naive(
    naive: Callable[..., Any],
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    initial_state: Any,
    scale: Any = None,
    cu_seqlens: Any = None,
    use_qk_l2norm_in_kernel: bool = False,
    output_final_state: bool = True,
    **forms: Any,
) -> tuple[Any, Any]:
    if use_qk_l2norm_in_kernel:
        q, k = F.normalize(q.float(), dim=-1), F.normalize(k.float(), dim=-1)
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    offsets = None if cu_seqlens is None else cu_seqlens.tolist()
    parts = [slice(None)] if offsets is None else [slice(*span) for span in pairwise(offsets)]
    outputs, states = [], []
    for n, tokens in enumerate(parts):
        start = initial_state if offsets is None else initial_state[n : n + 1]
        given = {name: x[:, tokens] for name, x in {"q": q, "k": k, "v": v, "g": g, "beta": beta}.items()}
        more = {"scale": scale, "initial_state": start, "output_final_state": True}
        output, state = naive(**given, **more)
        outputs.append(output)
        states.append(state)
    return torch.cat(outputs, 1), torch.cat(states)


@contextmanager
def running(item: pytest.Function) -> Iterator[None]:
    global _test
    _test = item.originalname or item.name
    yield
