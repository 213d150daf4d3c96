// ssd/replay_step: loads tokens to shared memory, computes how much of each is left for a later one, and stores new ones in the
// ring.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/ssd/replay_step/place.cuh>
#include <gdn_cuda/kernels/ssd/step_size.cuh>

namespace gdn_cuda::ssd {

// Copies rows of `elements` elements, a multiple of 8, to shared memory. first_of(element): its address in the first row;
// `stride`: between rows. A thread's element is the same in all of its rows.
template <ReplayStepConfig kConfig, class To>
__device__ __forceinline__ void copy_rows(To* to, int count, int elements, bool whole_units, i64 stride, const auto& first_of) {
    using Io = Storage<kConfig.io>;
    constexpr int kUnit = 16 / int(sizeof(Io)), kUnitBits = 4, kElementBits = 7;  // threads of a row
    static_assert(kConfig.threads() == 1 << kElementBits);
    const int bits = whole_units ? kUnitBits : kElementBits, step = whole_units ? kUnit : 1;
    const int first_row = static_cast<int>(threadIdx.x) >> bits, row_step = kConfig.threads() >> bits;
#pragma unroll 1
    for (int element = (threadIdx.x & ((1 << bits) - 1)) * step; element < elements; element += step << bits) {
        const Io* from = first_of(element) + first_row * stride;
#pragma unroll 1
        for (int row = first_row; row < count; row += row_step, from += row_step * stride) {
            Io* const place = reinterpret_cast<Io*>(to[row].bytes) + element;
            if (whole_units)
                cp_async_16(place, from);
            else
                *place = *from;
        }
    }
}

// They come before the ring's entries, so that these loads need not wait for the count of those.
template <ReplayStepConfig kConfig>
__device__ __forceinline__ void load_new_tokens(ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                                const ReplayPlace<kConfig>& place) {
    const auto *const C = place.token_of(args.C, 0, place.group), *const B = place.token_of(args.B, 0, place.group);
    copy_rows<kConfig>(shared.C, place.length, args.states, args.whole_units, args.C.token, [&](int n) { return C + n; });
    copy_rows<kConfig>(shared.B, place.length, args.states, args.whole_units, args.B.token, [&](int n) { return B + n; });
    copy_rows<kConfig>(shared.x, place.length, place.rows, args.whole_units, args.x.token, [&](int row) {
        const auto at = place.channel_of(args, row);
        return place.token_of(args.x, 0, place.first_head + at.head) + at.channel;
    });
}
template <ReplayStepConfig kConfig>
__device__ __forceinline__ void load_stored_tokens(ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                                   const ReplayPlace<kConfig>& place) {
    const auto* const B = place.ring_B(args, 0, place.group);
    copy_rows<kConfig>(shared.B + place.length, place.stored, args.states, true, args.B_ring.entry,
                       [&](int n) { return B + n; });
    copy_rows<kConfig>(shared.x + place.length, place.stored, place.rows, true, args.x_ring.entry, [&](int row) {
        const auto at = place.channel_of(args, row);
        return place.ring_x(args, 0, place.first_head + at.head) + at.channel;
    });
}

// A head's steps: a lane has a new token's and a stored one's.
template <ReplayStepConfig kConfig>
struct HeadSteps {
    RawElement dt;
    float bias, rate;  // of the head: its dt_bias and A

    __device__ __forceinline__ void load(const ReplayStepArgs& args, const ReplayPlace<kConfig>& place, int head, int lane) {
        bias = bias_of(args, head);
        rate = load_float(args.A.values, head * args.A.head);
        if (lane < place.length)
            dt.load(args.dt.values,
                    place.sequence * args.dt.batch + (place.start + lane) * args.dt.token + head * args.dt.head);
    }
    __device__ __forceinline__ float delta(const ReplayStepArgs& args, bool exists) const {
        return exists ? step_size(args, dt.to_float(args.dt.values.type) + bias) : 0.f;
    }
};

// A warp computes the weights of a head's tokens. δA is summed from the later token back, or forward from a token on, so that
// nothing cancels where a sum is large. A decay of 0 is a reset: nothing before it is read.
template <ReplayStepConfig kConfig>
__device__ __forceinline__ void store_weights(ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                              const ReplayPlace<kConfig>& place, const HeadSteps<kConfig>& steps,
                                              float stored_delta, int head, int lane) {
    constexpr unsigned kAll = 0xffffffffu;
    const bool is_stored = lane < place.stored;
    const float delta = steps.delta(args, lane < place.length);
    const float gate = lane < place.length ? delta * steps.rate : 0.f;
    float sum = is_stored ? stored_delta * steps.rate : 0.f;  // of the stored tokens from the lane's on
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float later = __shfl_down_sync(kAll, sum, step);
        sum += lane + step < 32 ? later : 0.f;
    }
    const float total = __shfl_sync(kAll, sum, 0), next = __shfl_down_sync(kAll, sum, 1), after = lane == 31 ? 0.f : next;

    auto& weights = shared.weights[head];
    auto& past = shared.past[head];
    const auto after_last = [&](bool decayed) { return 32 - __clz(static_cast<int>(__ballot_sync(kAll, decayed))); };
    // `tokens`: of the new ones. The decays after the lane's two tokens, and of the state.
    const auto store = [&](int row, int tokens, float new_decay, float stored_decay, float state_decay) {
        const int first_new = after_last(lane < tokens && new_decay == 0.f),
                  first_stored = after_last(is_stored && stored_decay == 0.f);
        if (lane < tokens) weights[row][lane] = lane < first_new ? 0.f : new_decay * delta;
        if (is_stored) weights[row][place.length + lane] = lane < first_stored ? 0.f : stored_decay * stored_delta;
        if (lane == 0) past[row] = {state_decay, first_stored, first_new};
    };
    float since_start = 0.f, since_token = 0.f;  // sums up to the current new token
#pragma unroll 1
    for (int t = 0; t < place.length; ++t) {
        const float now = __shfl_sync(kAll, gate, t);
        since_start += now;
        since_token = lane < t ? since_token + now : 0.f;
        store(t, t + 1, expf(since_token), expf(after + since_start), expf(total + since_start));
    }
    if (place.folds && place.fold_row(args) == kConfig.tokens) store(kConfig.tokens, 0, 1.f, expf(after), expf(total));
}

// C times B, for every new token and every entry. A group of lanes computes a product.
template <ReplayStepConfig kConfig>
__device__ __forceinline__ void store_scores(ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                             const ReplayPlace<kConfig>& place) {
    using Io = Storage<kConfig.io>;
    constexpr int kLanes = ReplayStepConfig::kLanes, kElements = 8;
    const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
    const int entries = place.length + place.stored;
#pragma unroll 1
    for (int t = 0; t < place.length; ++t) {
        const Io* const C = reinterpret_cast<const Io*>(shared.C[t].bytes);
#pragma unroll 1
        for (int first = 0; first < entries; first += ReplayStepConfig::groups()) {
            const int entry = first + group;
            const Io* const B = reinterpret_cast<const Io*>(shared.B[min(entry, entries - 1)].bytes);  // all lanes sum
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < kConfig.states / (kElements * kLanes); ++i) {
                const int n = kElements * (i * kLanes + lane);
                if (n >= args.states) break;
                Vector<Io, kElements, true> b, c;
                b.load(B + n);
                c.load(C + n);
#pragma unroll
                for (int j = 0; j < kElements; ++j) sum = fmaf(b[j], c[j], sum);
            }
            sum = group_sum<kLanes>(sum);
            if (lane == 0 && entry < entries) shared.scores[t][entry] = sum;
        }
    }
}

// Stores x, B and δ of the new tokens in the ring: each block the x of its rows, the first of a group B, the first of a head δ;
// where they replace entries, the last block that has read those stores B and δ.
template <ReplayStepConfig kConfig>
__device__ __forceinline__ void store_tokens(const ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                             const ReplayPlace<kConfig>& place) {
    using Io = Storage<kConfig.io>;
    const int thread = threadIdx.x;
    if (thread < place.rows) {
        const auto at = place.channel_of(args, thread);
        Io* to = place.ring_x(args, place.next, place.first_head + at.head) + at.channel;
#pragma unroll 1
        for (int token = 0; token < place.length; ++token, to += args.x_ring.entry)
            *to = reinterpret_cast<const Io*>(shared.x[token].bytes)[thread];
    }
    if (place.overwrites()) {
        if (!shared.is_last) return;
#pragma unroll 1
        for (int i = thread; i < place.length * args.groups * args.states; i += kConfig.threads()) {
            const int row = i / args.states, n = i % args.states, t = row / args.groups, group = row % args.groups;
            place.ring_B(args, place.next + t, group)[n] = place.token_of(args.B, t, group)[n];
        }
#pragma unroll 1
        for (int i = thread; i < place.length * args.heads; i += kConfig.threads()) {
            const int t = i / args.heads, head = i % args.heads;
            const float dt = load_float(
                args.dt.values, place.sequence * args.dt.batch + (place.start + t) * args.dt.token + head * args.dt.head);
            *place.ring_delta(args, place.next + t, head) = step_size(args, dt + bias_of(args, head));
        }
        return;
    }
    const int head = thread / 32, t = thread % 32;
    // After the token itself nothing has decayed.
    if (t < place.length && head < place.heads(args) && (head > 0 || place.first_channel == 0))
        *place.ring_delta(args, place.next + t, place.first_head + head) = shared.weights[head][t][t];
    if (place.first_row != 0) return;
#pragma unroll 1
    for (int n = thread; n < args.states; n += kConfig.threads()) {
        Io* to = place.ring_B(args, place.next, place.group) + n;
#pragma unroll 1
        for (int t = 0; t < place.length; ++t, to += args.B_ring.entry) *to = reinterpret_cast<const Io*>(shared.B[t].bytes)[n];
    }
}

}  // namespace gdn_cuda::ssd
