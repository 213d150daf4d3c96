// gdn/chunk_gates_backward: gradients of a call's gates of any form from those of the logarithms of decays and of betas.
//
//     raw      g = -exp(A_log) softplus(z), z = a + dt_bias    da = -dg exp(A_log) sigmoid(z)    dA_log: sum of dg g
//     decays   d decay = dg / decay
//     logits   db = dbeta beta (1 - sigmoid(b))
//
// Where dg is 0, as at a reset, so is what it is multiplied by, even infinity. Adjacent threads have adjacent heads. A thread
// keeps its head, and sums over every so many of its block's tokens in order; the host adds the blocks' sums.
//
// Bound: the launch, as in gdn/chunk_gates: on an H200 3 us for 8192 tokens of 8 heads, 17 for 32768 of 32.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_gates_backward_plan.cuh>
#include <gdn_cuda/kernels/recurrence/decay_slopes.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>

namespace gdn_cuda::gdn {

template <ChunkGatesBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) chunk_gates_backward(const __grid_constant__ ChunkGatesBackwardArgs args) {
    __shared__ float shared[2][kConfig.threads()];
    const int lane = static_cast<int>(threadIdx.x) % args.lanes, head = static_cast<int>(blockIdx.y) * args.lanes + lane;
    const int step = kConfig.threads() / args.lanes, mine = static_cast<int>(threadIdx.x) / args.lanes;
    const i64 rows = args.sequences * args.tokens, first = blockIdx.x * args.tokens_of_block;
    const i64 end = min(first + args.tokens_of_block, rows);
    float by_A_log = 0.f, by_bias = 0.f;
    if (head < args.heads) {
#pragma unroll 4
        for (i64 row = first + mine; row < end; row += step) {
            const i64 sequence = row / args.tokens, token = row - sequence * args.tokens, at = row * args.heads + head;
            RawGates gates;
            gates.load(args, scalar_offset(args.gate, sequence, token, head), scalar_offset(args.beta, sequence, token, head),
                       head, args.forms);
            if (args.gate_to.data != nullptr) {
                const float dg = args.log_decay_gradient[at], gate = gates.gate_of(args, args.forms);
                float slope = 1.f;
                if (args.forms.gate == GateForms::decay) {
                    slope = 1.f / gate;
                } else if (args.forms.gate == GateForms::raw) {
                    const float z = to_float(gates.gate, args.gate.values.type) + to_float(gates.dt_bias, args.dt_bias.type);
                    slope = log_decay_slope(to_float(gates.A_log, args.A_log.type), z);
                }
                const float found = dg == 0.f ? 0.f : dg * slope;
                store_float(args.gate_to, at, found);
                by_A_log += dg == 0.f ? 0.f : dg * gate;
                by_bias += found;
            }
            if (args.beta_to.data != nullptr) {
                float found = args.beta_gradient[at];
                if (args.forms.beta_is_logit && found != 0.f) {  // a token of no sequence may have any logit
                    const float logit = to_float(gates.beta, args.beta.values.type);
                    found *= args.forms.beta_factor * sigmoid(logit) * sigmoid(-logit);
                }
                store_float(args.beta_to, at, found);
            }
        }
    }
    if (args.sums == nullptr) return;
    shared[0][threadIdx.x] = by_A_log;
    shared[1][threadIdx.x] = by_bias;
    __syncthreads();
    if (mine > 1 || head >= args.heads) return;  // thread row 0 adds for A_log, row 1 for dt_bias; a block has several rows
    float sum = 0.f;
    for (int i = 0; i < step; ++i) sum += shared[mine][i * args.lanes + lane];
    args.sums[(mine * static_cast<i64>(gridDim.x) + blockIdx.x) * args.heads + head] = sum;
}

}  // namespace gdn_cuda::gdn
