// scan/rglru: x_t = a_t x_{t-1} + sqrt(1 - a_t^2) u_t with a = A^delta, and y = sum over n of x_n.
//
// A block has one channel if tokens are contiguous in memory, or 32 channels if channels are. It iterates over tiles of tokens
// and carries the states. In a tile, each thread has a segment of 8 or 16 consecutive tokens of a channel in registers. It
// composes their maps; a scan over the segments, by shuffles within a warp and shared memory between warps, gives the state
// before the segment, from which the thread computes its tokens. Loads of the next tile are in flight meanwhile. Several states
// are computed one after another on the same tokens.
//
// Shared memory: maps of warps, marks of tokens that begin a sequence, and with several states the carried ones.
//
// Bound for one state: memory, 6 bytes per element for bf16 (u, delta and out) and 12 for fp32. At that rate bf16 leaves time
// for 50 instructions an element, of which two are on the special function unit. docs/benchmarks/scan.md has the measured
// share. Few channels that are contiguous leave SMs idle, as a sequence is not split over blocks.
#pragma once

#include <gdn_cuda/kernels/scan/rglru/marks.cuh>
#include <gdn_cuda/kernels/scan/rglru/segment_scan.cuh>

namespace gdn_cuda::scan {

template <RglruConfig kConfig>
struct RglruForward {
    static constexpr int kTokens = kConfig.tokens;
    static constexpr bool kMany = kConfig.many_states;

    const RglruArgs& args;
    RglruSharedPlan<kConfig>& shared;
    RglruPlace<kConfig> place{args};
    RglruScan<kConfig> scan{shared.steps};
    float u[kTokens], delta[kTokens], y[kTokens];
    RglruMarked marked;
    bool any_marked;  // in the whole block: uniform, as there are barriers in the branches

    __device__ __forceinline__ bool packed() const { return args.cu_seqlens.data != nullptr; }
    __device__ __forceinline__ float initial_of(int sequence, int state) const {
        const bool given = args.initial.data != nullptr && place.exists;
        return given ? args.initial.data[place.in(args.initial, sequence, state)] : 0.f;
    }
    __device__ __forceinline__ float log_A(int state) const {
        return place.exists ? log_of_base(args.A.data[place.in(args.A, 0, state)]) : 0.f;
    }
    __device__ __forceinline__ void write_last(int sequence, int state, float x) const {
        args.last.data[place.in(args.last, sequence, state)] = x;
    }

    // Computes one state over one tile. `carried` is the state before the tile and becomes the state after it.
    template <bool kMarked>
    __device__ __forceinline__ void advance(int state, float log_a, RglruState& carried) {
        float a[kTokens], b[kTokens], log = 0.f, added = 0.f;
        const int first = place.segment * kTokens;
        if constexpr (kMarked)
            for_starts(marked.begin, shared.marks, first,
                       [&](int i, int sequence) { shared.ends.at[i][place.column()] = initial_of(sequence, state); });
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            const float token_log = delta[i] * log_a;
            const RglruGate gate(token_log);
            a[i] = gate.decay;
            b[i] = gate.root * u[i];
            const unsigned bit = 1u << i;
            if (kMarked && (marked.unit & bit)) b[i] = u[i];
            if (kMarked && (marked.detached & bit)) {
                if (marked.begin & bit) b[i] = fmaf(a[i], shared.ends.at[first + i][place.column()], b[i]);
                log = minus_infinity();
                added = b[i];
            } else {
                log += token_log;
                added = fmaf(a[i], added, b[i]);
            }
        }
        const auto before = scan.template publish<true>(log, added);
        __syncthreads();
        float x = scan.template enter<true>(before, carried);
        scan.swap_buffers();
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            const unsigned bit = 1u << i;
            if (kMarked && (marked.detached & bit)) {
                if (marked.starts & bit) shared.ends.at[first + i][place.column()] = x;
                x = b[i];
            } else {
                x = fmaf(a[i], x, b[i]);
            }
            y[i] += x;
        }
        if constexpr (kMarked)
            for_starts(marked.starts, shared.marks, first, [&](int i, int sequence) {
                const int before = sequence_before(args, sequence);
                if (before >= 0 && place.exists) write_last(before, state, shared.ends.at[i][place.column()]);
            });
    }
    __device__ __forceinline__ void advance_marked_or_not(int state, float log_a, RglruState& carried) {
        if (any_marked)
            advance<true>(state, log_a, carried);
        else
            advance<false>(state, log_a, carried);
    }
    // The states before the first token: one in a register, several in shared memory.
    __device__ __forceinline__ RglruState begin() {
        if constexpr (!kMany) return {packed() ? 0.f : initial_of(place.batch, 0), 0.f};
        const int groups = kConfig.channels_last ? kConfig.warps() : kConfig.threads();
        for (int state = place.segment; state < args.states; state += groups)
            shared.carry.at[state][place.column()] = {packed() ? 0.f : initial_of(place.batch, state), 0.f};
        __syncthreads();
        return {};
    }
    // Writes last states: those after the last token belong to the last sequence that has tokens; empty sequences keep their
    // initial states.
    __device__ __forceinline__ void end(const RglruState& carried) {
        __syncthreads();
        const int groups = kConfig.channels_last ? kConfig.warps() : kConfig.threads();
        const int sequence = last_sequence(args, place);
        for (int state = place.segment; state < args.states; state += groups) {
            if (!place.exists) continue;
            const float x = kMany ? shared.carry.at[state][place.column()].value : carried.value;
            if (sequence >= 0) write_last(sequence, state, x);
        }
        if (!packed()) return;
        for (int i = place.segment; i < args.sequences; i += groups)
            if (place.exists && !has_tokens(args, i))
                for (int state = 0; state < args.states; ++state) write_last(i, state, initial_of(i, state));
    }
    __device__ __forceinline__ void run() {
        RglruState carried = begin();
        const float first_log = log_A(0);
        RglruTokens<kConfig> next_u, next_delta;
        next_u.load(args.u, place, place.first(0), args.tokens);
        next_delta.load(args.delta, place, place.first(0), args.tokens);
#pragma unroll 1
        for (int tile = 0; tile < args.tiles; ++tile) {
            next_u.get(u);
            next_delta.get(delta);
            if (tile + 1 < args.tiles) {
                next_u.load(args.u, place, place.first(tile + 1), args.tokens);
                next_delta.load(args.delta, place, place.first(tile + 1), args.tokens);
            }
            marked = marks_of_tile(args, place, tile, shared.marks, any_marked);
#pragma unroll
            for (int i = 0; i < kTokens; ++i) y[i] = 0.f;
            if constexpr (kMany) {
#pragma unroll 1
                for (int state = 0; state < args.states; ++state) {
                    carried = shared.carry.at[state][place.column()];
                    keep(tile, state, carried.value);
                    advance_marked_or_not(state, log_A(state), carried);
                    // Read again after the barrier of the next state or tile; there are two states or more.
                    if (place.segment == 0) shared.carry.at[state][place.column()] = carried;
                }
            } else {
                keep(tile, 0, carried.value);
                advance_marked_or_not(0, first_log, carried);
            }
            RglruTokens<kConfig> out;
            out.set(y);
            out.store(args.out, place, place.first(tile), args.tokens);
        }
        end(carried);
    }
    __device__ __forceinline__ void keep(int tile, int state, float carried) const {
        if (place.writes()) args.checkpoints[place.checkpoint(args, tile, state)] = carried;
    }
};

template <RglruConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 512 / kConfig.threads()) rglru(const __grid_constant__ RglruArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    RglruForward<kConfig>{args, *reinterpret_cast<RglruSharedPlan<kConfig>*>(memory)}.run();
}

}  // namespace gdn_cuda::scan
