// Arguments of the kernels that compute a chunk's gradients of queries, keys, betas and gates, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/backward/handover.cuh>

namespace gdn_cuda::gdn {

struct BackwardGradientsArgs {
    Rows query, key, output_gradient, value_gradient;  // value_gradient: read; rows of tokens whose beta is 0 are cleared
    Rows query_gradient, key_gradient;
    float *beta_gradient, *gate_gradient;  // by sequence, token and head
    i64 scalars_sequence;                  // their strides
    int scalars_token;
    BackwardHandover from;
    Tagged cu_seqlens;
    int sequences, tokens, heads, heads_per_key, dk, dv;
    float scale;
    bool qk_norm;
};

// A chunk of a key head.
struct GradientsWork {
    i64 index, start;            // among all chunks; the sequence's first token
    int sequence, first, count;  // first token of the chunk, within its sequence; tokens
    int key_head;
};

}  // namespace gdn_cuda::gdn

#ifdef __CUDACC__

namespace gdn_cuda::gdn {

// The place of a chunk's first token among the scalars of one head.
__device__ __forceinline__ i64 first_scalar(const BackwardGradientsArgs& args, const GradientsWork& work, int head) {
    return work.sequence * args.scalars_sequence + (work.start + work.first) * args.scalars_token + head;
}
// The first row of a chunk.
template <class Io>
__device__ __forceinline__ Io* rows_of_chunk(const Rows& rows, const GradientsWork& work, int head) {
    return static_cast<Io*>(rows.data) + work.sequence * rows.batch + (work.start + work.first) * rows.token + head * rows.head;
}

// Gradients of the gates of a chunk's 64 tokens, by one warp: for token t s_i over i >= t, u_j over j < t, and what is the same
// for all. s_of(token), u_of(token): their sums over columns. Calls visit(token, gradient).
template <class SumOf, class OtherSumOf, class Visit>
__device__ __forceinline__ void for_each_gate_gradient(int lane, float same, SumOf&& s_of, OtherSumOf&& u_of, Visit&& visit) {
    constexpr unsigned kAll = 0xffffffffu;
    float later[2], earlier[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        later[part] = s_of(lane + 32 * part);
        const float u = __shfl_up_sync(kAll, u_of(lane + 32 * part), 1);
        earlier[part] = lane > 0 ? u : 0.f;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float after = __shfl_down_sync(kAll, later[part], step), before = __shfl_up_sync(kAll, earlier[part], step);
            if (lane + step < 32) later[part] += after;
            if (lane >= step) earlier[part] += before;
        }
    }
    later[0] += __shfl_sync(kAll, later[1], 0);
    earlier[1] += __shfl_sync(kAll, earlier[0] + u_of(lane), 31);
#pragma unroll
    for (int part = 0; part < 2; ++part) visit(lane + 32 * part, later[part] + earlier[part] + same);
}

}  // namespace gdn_cuda::gdn

#endif
