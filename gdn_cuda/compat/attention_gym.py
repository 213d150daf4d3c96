"""attention-gym's `chunk_gdn`, which torchtitan's Gated Delta Net layer calls, with gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..gdn import chunked_forward
from ..operators.caller import in_words_of_caller
from ..operators.dtypes import state_dtype

__all__ = ["chunk_gdn"]


@in_words_of_caller(query="q", key="k", value="v", state="initial_state")
def chunk_gdn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    output_final_state: bool = False,
    impl: Any = None,
    kernel_options: Any = None,
) -> tuple[Tensor, Tensor | None]:
    """`gdn_cuda.chunked_forward` with states (N, H, K, V), views of memory with K contiguous, fp32 at least.

    q and k are used as they are: their callers normalise them. `impl` and `kernel_options` change nothing.
    """
    output, state = chunked_forward(
        *(q, k, v, beta, gate),
        state=None if initial_state is None else initial_state.mT,
        cu_seqlens=cu_seqlens,
        scale=scale,
        output_final_state=output_final_state,
        state_dtype=state_dtype(v),
    )
    return output, None if state is None else state.mT
