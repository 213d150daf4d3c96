"""FlashKDA's tests/test_fwd.py: its comparisons with FLA, with gdn_cuda.chunked_forward under the name flash_kda.fwd.

The reference is FLA's recurrence in fp64, which is gdn_cuda's on CPU tensors here; FLA's chunks in bf16, whose states the tests
compare too, are our backend's. Tests that ask for the bits of FlashKDA's own roundings are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import peers_cpu
import pytest
import torch

import gdn_cuda
from gdn_cuda.compat import fla as names
from gdn_cuda.integrations import counted

_BITS = "asks for the bits of FlashKDA's own roundings"
EXCLUDED = {"test_fwd": _BITS, "test_fwd_varlen": _BITS}
ONE_OF: dict[str, int] = {}


def fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    lower_bound: float,
    initial_state: torch.Tensor | None = None,
    final_state: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
) -> None:
    call: dict[str, Any] = {"A_log": A_log, "dt_bias": dt_bias, "lower_bound": lower_bound, "beta_is_logit": True}
    call |= {"scale": scale, "use_qk_l2norm": True, "out": out, "final_state": final_state}
    gdn_cuda.chunked_forward(q, k, v, beta, g, initial_state, cu_seqlens, **call)
    counted.count("flashkda.fwd")


def _in_fp64(*given: Any, **named: Any) -> Any:
    moved = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in named.items()}
    v_first = moved.pop("transpose_state_layout", False)
    output, state = names.fused_recurrent_kda(*given, **moved, state_v_first=v_first)
    return output.to(named["q"].device), state.to(named["q"].device)


def prepare() -> None:
    from gdn_cuda.integrations import fla

    fla.install(cpu=peers_cpu.ON_CPU)


@contextmanager
def importing() -> Iterator[None]:
    """FLA, which looks for FlashKDA too, must not find it. The reference in torch is of the tests that are left out."""
    with pytest.MonkeyPatch.context() as patch:
        for name, function in (("fwd", fwd), ("torch_ref", None)):
            module = "flash_kda" if name == "fwd" else name
            patch.setitem(sys.modules, module, ModuleType(module))
            setattr(sys.modules[module], name, function)
        yield


def adapt(module: ModuleType) -> None:
    """The tests import FLA's functions where they run, and plot."""
    if not hasattr(module, "run_fla_gold_reference"):
        return
    gold = module.run_fla_gold_reference

    def reference(*given: Any, **named: Any) -> Any:
        import fla.ops.kda as theirs

        theirs_by_token, theirs.fused_recurrent_kda = theirs.fused_recurrent_kda, _in_fp64
        try:
            return gold(*given, **named)
        finally:
            theirs.fused_recurrent_kda = theirs_by_token

    module.run_fla_gold_reference = reference
    module.plot_error_comparison = lambda results, path: None
