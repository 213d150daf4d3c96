// gdn/kda_fold: the states after all segments of a sequence in a window but the last, from the state after the first and the
// others' L and M (kda/segments_plan.cuh), in fp32:
//
//     S <- S M + L
//
// The state after a segment takes the place of its L. A block takes a few rows of a sequence and head's state.
//
// Products with infinities and NaN are as those of the recurrence, which multiplies 0 by them only where a decay is not 0: of a
// state before a token that resets all channels nothing is left, nor of a channel that the segment's first token resets.
// Between these, a channel that is not finite spreads to all of its row. So M, where it is 0 because decays are small, and not
// because one is 0, does not hide NaN. Few calls need it, so gates are read once more where it does.
//
// Bound: latency, as segments follow one another.
#pragma once

#include <gdn_cuda/kernels/gdn/compose.cuh>
#include <gdn_cuda/kernels/gdn/kda/loads.cuh>
#include <gdn_cuda/kernels/gdn/kda/segments.cuh>
#include <gdn_cuda/kernels/gdn/kda/token_decay.cuh>
#include <gdn_cuda/kernels/recurrence/states.cuh>

namespace gdn_cuda::gdn {

template <KdaFoldConfig kConfig>
struct KdaFolder {
    using Rows = ComposedRows<kConfig.columns, kConfig.rows, kConfig.kParts>;
    struct Shared {
        typename Rows::Shared rows;
        bool resets[kConfig.columns];  // channels that the segment's first token resets
        Span span;
        KdaSequenceSegments segments;
    };

    Shared& shared;
    const KdaOwnArgs& args;
    const Span& span = shared.span;  // registers are short
    const KdaSequenceSegments& segments = shared.segments;
    Rows rows;
    float found[Rows::kOwn];  // the thread's rows of the state

    __device__ __forceinline__ KdaFolder(Shared& shared, const KdaOwnArgs& args)
        : shared(shared),
          args(args),
          rows(shared.rows, args.chunked.call.dk, static_cast<int>(blockIdx.y) * kConfig.rows, args.chunked.call.dv) {}

    __device__ __forceinline__ void run() {
        if (threadIdx.x < 32) {
            const Span found = span_of(call().cu_seqlens, sequence(), call().tokens);
            const KdaSequenceSegments found_segments(args, sequence(), found);
            if (threadIdx.x == 0) {
                shared.span = found;
                shared.segments = found_segments;
            }
        }
        __syncthreads();
        if (segments.count < 3) return;
        rows.load_rows(state_after(0));
#pragma unroll
        for (int row = 0; row < Rows::kOwn; ++row) found[row] = rows.added[row];
        rows.begin();
        load(1);
#pragma unroll 1
        for (int segment = 1; segment + 1 < segments.count; ++segment) {
            const auto load_next = [&] {
                if (segment + 2 < segments.count) load(segment + 1);
            };
            if (__syncthreads_or(!is_finite())) [[unlikely]] {
                follow_with_care(segment);
                load_next();
            } else {
                rows.follow(found, load_next);
            }
            rows.store_rows(state_after(segment), found);
        }
    }

  private:
    __device__ __forceinline__ const GdnCall& call() const { return args.chunked.call; }
    __device__ __forceinline__ int sequence() const {
        return static_cast<int>(blockIdx.x / static_cast<unsigned>(call().heads));
    }
    __device__ __forceinline__ int head() const { return static_cast<int>(blockIdx.x % static_cast<unsigned>(call().heads)); }
    __device__ __forceinline__ float* state_after(int segment) const {
        return kda_segment_state(args, segments.first_slot + segment, head());
    }
    __device__ __forceinline__ const float* transition(int segment) const {
        return state_after(segment) + call().dv * call().dk;
    }
    __device__ __forceinline__ void load(int segment) {
        rows.load_transition(transition(segment));
        rows.load_rows(state_after(segment));
    }
    // Whether the thread's rows of the state and of the next M are.
    __device__ __forceinline__ bool is_finite() const {
        float zero = 0.f;
#pragma unroll
        for (const float each : found) zero = fmaf(each, 0.f, zero);
#pragma unroll
        for (const float each : rows.m) zero = fmaf(each, 0.f, zero);
        return zero == 0.f;
    }
    __device__ __forceinline__ float decay_at(int token, int channel) const {
        return kda_token_decay(call(), args.window.positions != nullptr ? 0 : sequence(), span.start + token, head(), channel);
    }
    // Whether one token of the segment resets all channels. A warp takes every so many tokens.
    __device__ __forceinline__ bool find_resets(int segment) const {
        constexpr int kWarps = kConfig.threads() / 32;
        const int first = segments.begin(segment), last = segments.begin(segment + 1),
                  lane = static_cast<int>(threadIdx.x) % 32;
        const KdaRecords records(args, sequence(), head(), span, first);
        if (rows.part == 0) shared.resets[rows.column] = false;
        __syncthreads();
        bool found_one = false;
#pragma unroll 1
        for (int chunk = first; chunk < last; ++chunk) {
            if (!(records.flags[records.index(chunk - first)] & kKdaResets)) continue;
            const int end = min((chunk + 1) * kChunk, span.length);
#pragma unroll 1
            for (int token = chunk * kChunk + static_cast<int>(threadIdx.x) / 32; token < end; token += kWarps) {
                bool resets_all = true;
#pragma unroll 1
                for (int channel = lane; channel < call().dk; channel += 32) {
                    const bool resets = decay_at(token, channel) == 0.f;
                    if (token == first * kChunk) shared.resets[channel] = resets;
                    resets_all &= resets;
                }
                found_one |= __all_sync(0xffffffffu, resets_all);
            }
        }
        return __syncthreads_or(found_one);
    }
    // Where the state or M is not finite. Called after a barrier.
    __device__ __forceinline__ void follow_with_care(int segment) {
        const int dk = call().dk, column = rows.column;
        const bool is_left = !find_resets(segment);
        const float* const m = transition(segment);
#pragma unroll
        for (int row = 0; row < Rows::kOwn; ++row) {
            found[row] = rows.added[row];
            if (!is_left || column >= dk) continue;
#pragma unroll 1
            for (int channel = 0; channel < dk; ++channel) {
                const float s = shared.rows.state[rows.part * Rows::kOwn + row][channel];
                if (s == 0.f || (shared.resets[channel] && !isfinite(s))) continue;
                found[row] = fmaf(s, m[static_cast<i64>(channel) * dk + column], found[row]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int row = 0; row < Rows::kOwn; ++row) shared.rows.state[rows.part * Rows::kOwn + row][column] = found[row];
    }
};

template <KdaFoldConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) kda_fold(const __grid_constant__ KdaOwnArgs args) {
    __shared__ typename KdaFolder<kConfig>::Shared shared;
    const GdnCall& call = args.chunked.call;
    i64 slot;
    int first_step;
    const auto sequence = static_cast<int>(blockIdx.x / static_cast<unsigned>(call.heads));
    if (starting_slot(call, sequence, slot, first_step) == Place::run) KdaFolder<kConfig>(shared, args).run();
}

}  // namespace gdn_cuda::gdn
