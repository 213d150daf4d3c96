// gdn/chunk_gates: converts a call's gates of any form (raw, decays, logits, absent) to what the kernels of the chunked form
// read: logarithms of decays, and betas, in fp32.
//
// One thread per token and head.
//
// Bound: the launch; memory from some 100,000 tokens on. The share of a copy's bandwidth was not measured.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_gates_plan.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>

namespace gdn_cuda::gdn {

template <ChunkGatesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) chunk_gates(const __grid_constant__ ChunkGatesArgs args) {
    const i64 at = static_cast<i64>(blockIdx.x) * kConfig.threads() + threadIdx.x;
    if (at >= args.sequences * args.tokens * args.heads) return;
    const int head = static_cast<int>(at % args.heads);
    const i64 row = at / args.heads, sequence = row / args.tokens, token = row % args.tokens;
    RawGates gates;
    gates.load(args, scalar_offset(args.gate, sequence, token, head), scalar_offset(args.beta, sequence, token, head), head,
               args.forms);
    const float gate = gates.gate_of(args, args.forms);
    args.log_decay[at] = args.forms.gate == GateForms::decay ? logf(gate) : gate;
    args.beta_out[at] = gates.beta_of(args, args.forms);
}

}  // namespace gdn_cuda::gdn
