// gdn/chunk_gates: what the kernels of the chunked form take, logarithms of decays and betas in fp32, from the gates of a call
// in any other form.
//
// A thread has a token's head.
//
// Bound: the launch; memory from some 100,000 tokens on.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_gates_plan.cuh>
#include <gdn_cuda/kernels/recurrence/state_row.cuh>

namespace gdn_cuda::gdn {

template <ChunkGatesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) chunk_gates(const __grid_constant__ ChunkGatesArgs args) {
    const i64 at = static_cast<i64>(blockIdx.x) * kConfig.threads() + threadIdx.x;
    if (at >= args.sequences * args.tokens * args.heads) return;
    const int head = static_cast<int>(at % args.heads);
    const i64 row = at / args.heads, sequence = row / args.tokens, token = row % args.tokens;
    const auto number_at = [&](const Scalars& of) { return sequence * of.batch + token * of.token + head * of.head; };
    RawGates gates;
    gates.load(args, number_at(args.gate), number_at(args.beta), head, args.forms);
    const float gate = gates.gate_of(args, args.forms);
    args.log_decay[at] = args.forms.gate == GateForms::decay ? logf(gate) : gate;
    args.beta_out[at] = gates.beta_of(args, args.forms);
}

}  // namespace gdn_cuda::gdn
