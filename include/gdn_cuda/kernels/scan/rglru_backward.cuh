// scan/rglru_backward: gradients of scan/rglru by u, delta, log A and initial states.
//
// With lambda_t = grad_t + a_{t+1} lambda_{t+1}, root r = sqrt(1 - a^2) and log a = delta log A:
//     grad u = r lambda,   grad log a = lambda (a x_{t-1} - u a^2 / r),   summed over states.
//
// Blocks, threads and segments are those of scan/rglru, with 8 tokens a thread; tiles are computed from the last to the first.
// In each tile one scan recomputes the states before segments, from the state before the tile that forward stored, and another,
// in reverse, computes the gradient that flows from token t to token t - 1, f_t = a_t (grad_t + f_{t+1}). One barrier serves
// both.
//
// Shared memory: maps of warps in both directions, marks, and with several states their carried f.
//
// Bound for one state: memory, 10 bytes per element for bf16 (u, delta and three gradients) and 20 for fp32.
// docs/benchmarks/scan.md has the measured share.
#pragma once

#include <gdn_cuda/kernels/scan/rglru/marks.cuh>
#include <gdn_cuda/kernels/scan/rglru/segment_scan.cuh>

namespace gdn_cuda::scan {

template <RglruConfig kConfig>
struct RglruBackward {
    static constexpr int kTokens = kConfig.tokens;
    static constexpr bool kMany = kConfig.many_states;
    static constexpr float kLn2 = 0.693147181f;

    const RglruBackwardArgs& call;
    const RglruArgs& args;
    RglruBackwardSharedPlan<kConfig>& shared;
    RglruPlace<kConfig> place{args};
    RglruScan<kConfig> forward{shared.forward}, reverse{shared.reverse};
    float u[kTokens], delta[kTokens], grad[kTokens], du[kTokens], ddelta[kTokens];
    RglruMarked marked;
    bool any_marked;  // in the whole block: uniform, as there are barriers in the branches

    __device__ __forceinline__ bool packed() const { return args.cu_seqlens.data != nullptr; }
    __device__ __forceinline__ float value_of(const RglruStates& x, int sequence, int state) const {
        return x.data != nullptr && place.exists ? x.data[place.in(x, sequence, state)] : 0.f;
    }
    __device__ __forceinline__ float log_A(int state) const {
        return place.exists ? log_of_base(args.A.data[place.in(args.A, 0, state)]) : 0.f;
    }
    __device__ __forceinline__ float before_tile(int tile, int state) const {
        return place.exists ? args.checkpoints[place.checkpoint(args, tile, state)] : 0.f;
    }
    // Computes one state over one tile. `before` is the state before the tile; `flow` is f after the tile and becomes f of its
    // first token. Returns the sum of delta * (gradient of log a).
    template <bool kMarked>
    __device__ __forceinline__ float advance(int state, float log_a, float before, RglruState& flow) {
        float a[kTokens], root[kTokens], previous[kTokens];  // previous: x_{t-1}; at first, what a token adds to the state
        float log = 0.f, added = 0.f;
        const int first = place.segment * kTokens;
        if constexpr (kMarked)
            for_starts(marked.starts, shared.marks, first, [&](int i, int sequence) {
                const int ended = sequence_before(args, sequence);
                shared.initial.at[i][place.column()] =
                    sequence < args.sequences ? value_of(args.initial, sequence, state) : 0.f;
                shared.grads.at[i][place.column()] = ended >= 0 ? value_of(call.grad_last, ended, state) : 0.f;
            });
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            const float token_log = delta[i] * log_a;
            const RglruGate gate(token_log);
            const unsigned bit = 1u << i;
            a[i] = gate.decay;
            root[i] = kMarked && (marked.unit & bit) ? 1.f : gate.root;
            float b = root[i] * u[i];
            if (kMarked && (marked.detached & bit)) {
                if (marked.begin & bit) b = fmaf(a[i], shared.initial.at[first + i][place.column()], b);
                log = minus_infinity();
                added = b;
            } else {
                log += token_log;
                added = fmaf(a[i], added, b);
            }
            previous[i] = b;
        }
        const auto before_forward = forward.template publish<true>(log, added);
        added = 0.f;
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i)
            added = kMarked && (marked.detached >> i & 1) ? flow_before(first, i) : a[i] * (added + grad[i]);
        const auto before_reverse = reverse.template publish<false>(log, added);
        __syncthreads();
        RglruState at_tile{before, 0.f};
        float x = forward.template enter<true>(before_forward, at_tile);
        float f = reverse.template enter<false>(before_reverse, flow);
        forward.swap_buffers();
        reverse.swap_buffers();
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            const unsigned bit = 1u << i;
            const float b = previous[i];
            if (kMarked && (marked.detached & bit)) {
                previous[i] = marked.begin & bit ? shared.initial.at[first + i][place.column()] : 0.f;
                x = b;
            } else {
                previous[i] = x;
                x = fmaf(a[i], x, b);
            }
        }
        const float ln_a = log_a * kLn2;
        float sum = 0.f;
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            const unsigned bit = 1u << i;
            const float lambda = grad[i] + f;
            du[i] = fmaf(root[i], lambda, du[i]);
            const float divisor = at_least(root[i], call.least_root);
            float dlog_a = previous[i];
            if (!kMarked || !(marked.unit & bit)) {
                // At a root of 0 the derivative is infinite; it counts as 0.
                const float inverse = divisor == 0.f ? 0.f : reciprocal_fast(divisor);
                dlog_a = fmaf(-u[i] * a[i], inverse, dlog_a);
            }
            dlog_a *= a[i] * lambda;
            ddelta[i] = fmaf(dlog_a, ln_a, ddelta[i]);
            sum = fmaf(dlog_a, delta[i], sum);
            if (kMarked && (marked.detached & bit)) {
                f = flow_before(first, i);
                if (marked.starts & bit) shared.grads.at[first + i][place.column()] = marked.begin & bit ? a[i] * lambda : 0.f;
            } else {
                f = a[i] * lambda;
            }
        }
        if constexpr (kMarked)
            if (call.dinitial.data != nullptr && place.exists)
                for_starts(marked.starts, shared.marks, first, [&](int i, int sequence) {
                    if (sequence < args.sequences)
                        call.dinitial.data[place.in(call.dinitial, sequence, state)] = shared.grads.at[i][place.column()];
                });
        return sum;
    }
    // What flows into the token before one that does not continue it: the gradient of the last state of the sequence that ends
    // there.
    __device__ __forceinline__ float flow_before(int first, int i) const {
        return marked.starts >> i & 1 ? shared.grads.at[first + i][place.column()] : 0.f;
    }
    __device__ __forceinline__ float advance_marked_or_not(int state, float log_a, float before, RglruState& flow) {
        return any_marked ? advance<true>(state, log_a, before, flow) : advance<false>(state, log_a, before, flow);
    }
    // f after the last token: the gradient of its sequence's last state.
    __device__ __forceinline__ RglruState begin() {
        const int sequence = last_sequence(args, place);
        if constexpr (!kMany) return {sequence < 0 ? 0.f : value_of(call.grad_last, sequence, 0), 0.f};
        const int groups = kConfig.channels_last ? kConfig.warps() : kConfig.threads();
        for (int state = place.segment; state < args.states; state += groups)
            shared.carry.at[state][place.column()] = {sequence < 0 ? 0.f : value_of(call.grad_last, sequence, state), 0.f};
        __syncthreads();
        return {};
    }
    // Writes the gradients of initial states: what flows out of the first token, or for a sequence without tokens the gradient
    // of its last state.
    __device__ __forceinline__ void end(const RglruState& flow) {
        if (call.dinitial.data == nullptr) return;
        __syncthreads();
        const int groups = kConfig.channels_last ? kConfig.warps() : kConfig.threads();
        if (!place.exists) return;
        if (packed()) {
            for (int i = place.segment; i < args.sequences; i += groups)
                if (!has_tokens(args, i))
                    for (int state = 0; state < args.states; ++state)
                        call.dinitial.data[place.in(call.dinitial, i, state)] = value_of(call.grad_last, i, state);
            return;
        }
        for (int state = place.segment; state < args.states; state += groups)
            call.dinitial.data[place.in(call.dinitial, place.batch, state)] =
                kMany ? shared.carry.at[state][place.column()].value : flow.value;
    }
    // Adds a tile's sum to the warp's own element of `dlog_A`, or initialises it.
    __device__ __forceinline__ void write_sum(int state, float sum, bool begins) const {
        if constexpr (!kConfig.channels_last) {
            sum = group_sum<32>(sum);
            if (place.lane() != 0) return;
        }
        if (!place.exists) return;
        float* at = call.dlog_A +
                    ((static_cast<i64>(place.batch) * args.channels + place.channel) * args.states + state) * kConfig.warps() +
                    place.warp();
        *at = begins ? sum : *at + sum;
    }
    __device__ __forceinline__ void run() {
        RglruState flow = begin();
        float sum = 0.f;
        const float first_log = log_A(0);
        const int last = args.tiles - 1;
        RglruTokens<kConfig> next_u, next_delta, next_grad;
        float next_before = 0.f;
        const auto load = [&](int tile) {
            next_u.load(args.u, place, place.first(tile), args.tokens);
            next_delta.load(args.delta, place, place.first(tile), args.tokens);
            next_grad.load(call.grad, place, place.first(tile), args.tokens);
            if constexpr (!kMany) next_before = before_tile(tile, 0);
        };
        // With contiguous tokens, sequences have few tiles, and prefetching would take the registers of the SM's second block.
        constexpr bool kPrefetch = kConfig.channels_last;
        if (kPrefetch && last >= 0) load(last);
#pragma unroll 1
        for (int tile = last; tile >= 0; --tile) {
            if (!kPrefetch) load(tile);
            next_u.get(u);
            next_delta.get(delta);
            next_grad.get(grad);
            const float before = next_before;
            if (kPrefetch && tile > 0) load(tile - 1);
            marked = marks_of_tile(args, place, tile, shared.marks, any_marked);
#pragma unroll
            for (int i = 0; i < kTokens; ++i) du[i] = ddelta[i] = 0.f;
            if constexpr (kMany) {
#pragma unroll 1
                for (int state = 0; state < args.states; ++state) {
                    flow = shared.carry.at[state][place.column()];
                    const float tile_sum = advance_marked_or_not(state, log_A(state), before_tile(tile, state), flow);
                    write_sum(state, tile_sum, tile == last);
                    // Read again after the barrier of the next state or tile; there are two states or more.
                    if (place.segment == 0) shared.carry.at[state][place.column()] = flow;
                }
            } else {
                sum += advance_marked_or_not(0, first_log, before, flow);
            }
            RglruTokens<kConfig> out;
            out.set(du);
            out.store(call.du, place, place.first(tile), args.tokens);
            out.set(ddelta);
            out.store(call.ddelta, place, place.first(tile), args.tokens);
        }
        if (!kMany || last < 0)
            for (int state = 0; state < args.states; ++state) write_sum(state, sum, true);
        end(flow);
    }
};

template <RglruConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.many_states || kConfig.channels_last ? 1 : 2)
    rglru_backward(const __grid_constant__ RglruBackwardArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    RglruBackward<kConfig>{args, args.forward, *reinterpret_cast<RglruBackwardSharedPlan<kConfig>*>(memory)}.run();
}

}  // namespace gdn_cuda::scan
