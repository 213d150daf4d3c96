"""FLA's tests/ops/test_kda.py, with the backend of `gdn_cuda.integrations.fla` in FLA's dispatch.

The tests compare outputs, final states and gradients with FLA's naive_recurrent_kda, in torch; comparisons of either are
counted. If a test compares two forms of one call, both run on gdn_cuda; outputs and states of the plain form are then also
compared with the naive recurrence. `fused_kda_gate` is `gdn_cuda.compat.fla`'s.

Tests of FlashKDA, another backend of that dispatch, run on our backend. Its reference in fp64 is ours on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import peers_cpu
import pytest
import torch
from peers_fla import compared, counted, without_skips

from gdn_cuda.compat import fla as names

COUNTED_AS = "fla"
EXCLUDED = {
    "test_naive_chunk": "a test of FLA's naive functions",
    "test_fused_recurrent_vllm_decode": "slots of a pool, which the integration leaves to FLA",
    "test_triton_ascend_backend_routing": "a test of another backend",
}
ONE_OF: dict[str, int] = {}
_TWO_FORMS = (
    "test_chunk_state_v_first",
    "test_chunk_use_beta_sigmoid_in_kernel",
    "test_fused_recurrent_state_v_first",
    "test_fused_recurrent_use_beta_sigmoid_in_kernel",
)
_test = ""


def prepare() -> None:
    from gdn_cuda.integrations import fla

    fla.install(cpu=peers_cpu.ON_CPU)


def adapt(module: ModuleType) -> None:
    module.assert_close = counted(module.assert_close, "fla_kda")
    module.fused_kda_gate = names.fused_kda_gate
    module.chunk_kda = compared(module.chunk_kda, module, "naive_recurrent_kda", _is_of_two_forms)
    recurrent = _in_fp64_by_the_reference(module.fused_recurrent_kda)
    module.fused_recurrent_kda = compared(recurrent, module, "naive_recurrent_kda", _is_of_two_forms)
    without_skips(module, "FlashKDA")


def _is_of_two_forms() -> bool:
    return _test in _TWO_FORMS


def _in_fp64_by_the_reference(function: Callable[..., Any]) -> Callable[..., Any]:
    """fp64 tensors, which gdn_cuda takes on a CPU alone, by gdn_cuda on the CPU."""

    def call(*given: Any, **named: Any) -> Any:
        q = named.get("q", given[0] if given else None)
        if q is None or q.dtype != torch.float64:
            return function(*given, **named)
        to_cpu = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in named.items()}
        output, state = names.fused_recurrent_kda(*(x.cpu() for x in given), **to_cpu)
        return output.to(q.device), None if state is None else state.to(q.device)

    return call


@contextmanager
def running(item: pytest.Function) -> Iterator[None]:
    global _test
    _test = item.originalname or item.name
    yield
