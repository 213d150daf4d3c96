"""A stand-in for the class that gdn_cuda.integrations.sglang replaces, with SGLang's signatures. It counts its calls. Its
prefill computes the results, and returns the states before each chunk as SGLang's does."""

from __future__ import annotations

from itertools import pairwise

import torch
from engine_calls import l2norm, recurrence


class TritonGDNKernel:
    uses_state_checkpoints = False
    supports_packed_decode = True
    reached: list[str]

    def __init__(self) -> None:
        self.reached = []

    def decode(self, q, k, v, a, b, *, A_log, dt_bias, ssm_states, cache_indices, query_start_loc, **kwargs):  # type: ignore[no-untyped-def]
        self.reached.append("decode")

    def packed_decode(  # type: ignore[no-untyped-def]
        self, mixed_qkv, a, b, *, A_log, dt_bias, scale, ssm_states, cache_indices, num_v_heads, head_v_dim, **kwargs
    ):
        self.reached.append("packed_decode")

    def extend(  # type: ignore[no-untyped-def]
        self, q, k, v, g, beta, *, ssm_states, cache_indices, query_start_loc, inplace_update=True, **kwargs
    ):
        self.reached.append("extend")
        outputs, before = [], []
        for n, (start, end) in enumerate(pairwise(query_start_loc.tolist())):
            given = (x[0, start:end] for x in (l2norm(q), l2norm(k), v, g, beta))
            output, states = recurrence(*given, ssm_states[cache_indices[n]])
            first = ssm_states[cache_indices[n]][None].double()
            before.append(torch.cat([first, states])[: max(end - start, 0) : 64][: -(-(end - start) // 64)])
            outputs.append(output)
            if inplace_update and end > start:
                ssm_states[cache_indices[n]] = states[-1].to(ssm_states.dtype)
        return torch.cat(outputs)[None].to(q.dtype), None, torch.cat(before)[None].float()

    def target_verify(  # type: ignore[no-untyped-def]
        self,
        A_log,
        dt_bias,
        q,
        k,
        v,
        a,
        b,
        *,
        ssm_states,
        cache_indices,
        query_start_loc,
        intermediate_states_buffer,
        intermediate_state_indices,
        cache_steps,
        retrieve_parent_token,
        **kwargs,
    ):
        self.reached.append("target_verify")
