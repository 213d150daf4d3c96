// Shared by scan/rglru and scan/rglru_backward: the gate of a token, a thread's place, loads and stores of its tokens, marks of
// tokens that do not continue the state before them, and the scan over the segments of a tile.
//
// A segment's map is x -> 2^log x + added. Decays are composed as sums of their base-2 logarithms, since a product of many
// decays near one drifts by their rounding; a state passes a warp's tokens as x + (2^log - 1) x.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/rglru/plan.cuh>

namespace gdn_cuda::scan {

// ---- Arithmetic

__device__ __forceinline__ float minus_infinity() {
    return __int_as_float(0xff800000);
}
constexpr float kNearOne = -0.5f;  // for logarithms above this the series is used

// 2^x - 1 for -1/2 < x <= 1/2, relative error 2e-7.
__device__ __forceinline__ float power_minus_one(float x) {
    float p = 1.5252734e-5f;  // ln(2)^k / k!
    p = fmaf(p, x, 1.5403530e-4f);
    p = fmaf(p, x, 1.3333558e-3f);
    p = fmaf(p, x, 9.6181291e-3f);
    p = fmaf(p, x, 5.5504109e-2f);
    p = fmaf(p, x, 0.24022651f);
    p = fmaf(p, x, 0.69314718f);
    return x * p;
}

// A decay a = 2^log and sqrt(1 - a^2), which is NaN for a > 1.
struct RglruGate {
    float decay, root;

    __device__ __forceinline__ explicit RglruGate(float log) {
        const bool near = log > kNearOne;
        const float power = exp2_fast(log), lost = near ? power_minus_one(log) : power - 1.f;
        decay = near ? 1.f + lost : power;
        root = sqrt_fast(-lost * (2.f + lost));
    }
};

// log2 A, finite for A = 0, so that its product with delta = 0 is 0 (0^0 = 1).
__device__ __forceinline__ float log_of_base(float a) {
    return at_least(log2f(a), -1e30f);
}

// The state after tokens that multiply it by 2^log and add `added`; log = -infinity erases even an infinite state.
__device__ __forceinline__ float state_after(float log, float state, float added) {
    return log == minus_infinity() ? added : fmaf(exp2_fast(log), state, added);
}

__device__ __forceinline__ RglruStep step_of(float log, float added) {
    const bool near = log > kNearOne;
    return {near ? 1.f : 0.f, near ? power_minus_one(log) : exp2_fast(log), added};
}
// Applies the steps of a tile one after another: `state`, after those so far, is kept * before + gained.
struct RglruChain {
    float state, kept = 1.f, gained = 0.f;

    __device__ __forceinline__ void apply(const RglruStep& step) {
        if (step.whole + step.rest == 0.f) state = gained = 0.f;  // erases even an infinite state
        const float gain = fmaf(step.rest, state, step.added);
        state = fmaf(step.whole, state, gain);
        gained = fmaf(step.whole, gained, gain);
        kept *= step.whole;
    }
    // The state after these steps, from `before`; the rounding error of the sum is in `low`.
    __device__ __forceinline__ RglruState after(const RglruState& before) const {
        if (kept == 0.f) return {gained, 0.f};
        const float gain = gained + before.low, value = before.value + gain;
        return {value, gain - (value - before.value)};
    }
};

// ---- Places

template <RglruConfig kConfig>
struct RglruPlace {
    int batch, channel, segment;
    bool exists;  // whether the channel exists; the last block has fewer

    __device__ __forceinline__ explicit RglruPlace(const RglruArgs& args) {
        if constexpr (kConfig.channels_last) {
            const int groups = (args.channels + 31) / 32;
            batch = static_cast<int>(blockIdx.x) / groups;
            channel = (static_cast<int>(blockIdx.x) - batch * groups) * 32 + lane();
            segment = warp();
        } else {
            batch = static_cast<int>(blockIdx.x) / args.channels;
            channel = static_cast<int>(blockIdx.x) - batch * args.channels;
            segment = static_cast<int>(threadIdx.x);
        }
        exists = channel < args.channels;
    }
    __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
    __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
    __device__ __forceinline__ static int column() { return kConfig.channels_last ? lane() : 0; }  // column in shared memory
    // First token of the thread's segment of a tile.
    __device__ __forceinline__ int first(int tile) const { return tile * kConfig.tile() + segment * kConfig.tokens; }
    // Whether this thread writes what the block writes once per channel.
    __device__ __forceinline__ bool writes() const { return exists && segment == 0; }
    __device__ __forceinline__ i64 in(const RglruTensor& x) const { return batch * x.batch + channel * x.channel; }
    __device__ __forceinline__ i64 in(const RglruStates& x, int sequence, int state) const {
        return sequence * x.sequence + channel * x.channel + state * x.state;
    }
    __device__ __forceinline__ i64 checkpoint(const RglruArgs& args, int tile, int state) const {
        return ((static_cast<i64>(batch) * args.tiles + tile) * args.states + state) * args.channels + channel;
    }
};

// A thread's segment of a tensor.
template <RglruConfig kConfig>
struct RglruTokens {
    using T = Storage<kConfig.io>;
    static constexpr int kTokens = kConfig.tokens, kVectors = kTokens * int(sizeof(T)) / 16;
    static_assert(kVectors * 16 == kTokens * int(sizeof(T)));

    alignas(16) T items[kTokens];

    // Tokens from `length` on are 0, as are those of channels that do not exist.
    __device__ __forceinline__ void load(const RglruTensor& from, const RglruPlace<kConfig>& place, int first, int length) {
        const T* at = static_cast<const T*>(from.data) + place.in(from) + first * from.token;
        const int left = place.exists ? length - first : 0;
        if (!kConfig.channels_last && from.vectors && left >= kTokens) {
#pragma unroll
            for (int i = 0; i < kVectors; ++i)
                reinterpret_cast<Raw<16>*>(items)[i].load(reinterpret_cast<const uint4*>(at) + i);
        } else if (kConfig.channels_last && left >= kTokens) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, at += from.token) items[i] = *at;
        } else {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, at += from.token) items[i] = i < left ? *at : from_float<T>(0.f);
        }
    }
    __device__ __forceinline__ void store(const RglruTensor& to, const RglruPlace<kConfig>& place, int first,
                                          int length) const {
        T* at = static_cast<T*>(to.data) + place.in(to) + first * to.token;
        const int left = place.exists ? length - first : 0;
        if (!kConfig.channels_last && to.vectors && left >= kTokens) {
#pragma unroll
            for (int i = 0; i < kVectors; ++i)
                reinterpret_cast<const Raw<16>*>(items)[i].store(reinterpret_cast<uint4*>(at) + i);
        } else if (kConfig.channels_last && left >= kTokens) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, at += to.token) *at = items[i];
        } else {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, at += to.token)
                if (i < left) *at = items[i];
        }
    }
    __device__ __forceinline__ void get(float (&to)[kTokens]) const {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) to[i] = to_float(items[i]);
    }
    __device__ __forceinline__ void set(const float (&from)[kTokens]) {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) items[i] = from_float<T>(from[i]);
    }
};

// ---- Marks

// Marks of a thread's tokens; bit i is token i.
struct RglruMarked {
    unsigned detached = 0;  // the token does not continue the state of the token before it
    unsigned starts = 0;    // detached tokens that begin a packed sequence
    unsigned begin = 0;     // starts that continue from the sequence's initial state
    unsigned unit = 0;      // the token's multiplier is 1, not sqrt(1 - a^2)
};

// Tokens after the last packed sequence count as one more sequence, with index `sequences` and no states.

__device__ __forceinline__ bool has_tokens(const RglruArgs& args, int sequence) {
    return span_of(args.cu_seqlens, sequence, args.tokens).length > 0;
}
// The last sequence before `sequence` that has tokens; -1 if there is none. It ends where `sequence` begins.
__device__ __forceinline__ int sequence_before(const RglruArgs& args, int sequence) {
    do --sequence;
    while (sequence >= 0 && !has_tokens(args, sequence));
    return sequence;
}

// The sequence that ends with the last token, or -1.
template <RglruConfig kConfig>
__device__ __forceinline__ int last_sequence(const RglruArgs& args, const RglruPlace<kConfig>& place) {
    if (args.cu_seqlens.data == nullptr) return place.batch;
    return load_index(args.cu_seqlens, args.sequences) < args.tokens ? -1 : sequence_before(args, args.sequences);
}

// The marks of a tile; all threads call this. `any`: whether a thread of the block has marks.
template <RglruConfig kConfig>
__device__ __forceinline__ RglruMarked marks_of_tile(const RglruArgs& args, const RglruPlace<kConfig>& place, int tile,
                                                     RglruMarks<kConfig>& shared, bool& any) {
    constexpr int kTokens = kConfig.tokens, kTile = kConfig.tile(), kThreads = kConfig.threads();
    const bool packed = args.cu_seqlens.data != nullptr, continues = args.initial.data != nullptr;
    RglruMarked marked;
    const bool first_is_fresh = tile == 0 && !continues;
    unsigned fresh = first_is_fresh && place.segment == 0 ? 1u : 0u;
    any = first_is_fresh && args.first_multiplier;
    if (packed || args.reset.data != nullptr) {
        const int first = tile * kTile, thread = static_cast<int>(threadIdx.x);
        __syncthreads();  // all threads have read the marks of the previous tile
#pragma unroll 4
        for (int i = thread; i < kTile; i += kThreads) {
            bool resets = false;
            if (args.reset.data != nullptr && i < args.tokens - first)
                resets = load_index(args.reset, place.batch * args.reset_batch + (first + i) * args.reset_token) != 0;
            const unsigned word = __ballot_sync(0xffffffffu, resets);  // kTile is a multiple of 32: all lanes are active
            if (thread % 32 == 0) shared.resets[i / 32] = word;
            shared.starts[i] = 0;
        }
        __syncthreads();
        if (packed) {
            int low = 0, high = args.sequences;  // binary search: the first sequence that begins in this tile or later
            while (low < high) {
                const int middle = low + (high - low) / 2;
                if (load_index(args.cu_seqlens, middle) < first)
                    low = middle + 1;
                else
                    high = middle;
            }
#pragma unroll 1
            for (int sequence = low + thread; sequence <= args.sequences; sequence += kThreads) {
                const i64 start = min(max(load_index(args.cu_seqlens, sequence), i64{0}), i64{args.tokens});
                if (start - first >= kTile) break;
                const bool is_rest = sequence == args.sequences && start < args.tokens;
                if (start >= first && (is_rest || (sequence < args.sequences && has_tokens(args, sequence))))
                    atomicMax(&shared.starts[start - first], sequence + 1);  // the last of overlapping sequences
            }
            __syncthreads();
        }
        const int mine = place.segment * kTokens;
        marked.detached = shared.resets[mine / 32] >> mine % 32 & ((1u << kTokens) - 1);
        fresh |= marked.detached;
        if (packed) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i)
                if (shared.starts[mine + i] != 0) {
                    const unsigned bit = 1u << i;
                    if (continues && (marked.detached & bit) == 0 && shared.starts[mine + i] <= args.sequences)
                        marked.begin |= bit;
                    else
                        fresh |= bit;
                    marked.starts |= bit;
                    marked.detached |= bit;
                }
        }
        any = __syncthreads_or(any || marked.detached != 0) != 0;
    }
    if (args.first_multiplier) marked.unit = fresh;
    return marked;
}

// Calls `visit(i, sequence)` for the tokens that begin a packed sequence. Not unrolled, as these are rare.
template <RglruConfig kConfig>
__device__ __forceinline__ void for_starts(unsigned bits, const RglruMarks<kConfig>& shared, int first, const auto& visit) {
#pragma unroll 1
    for (; bits != 0; bits &= bits - 1) {
        const int i = first + __ffs(static_cast<int>(bits)) - 1;
        visit(i, shared.starts[i] - 1);
    }
}

// ---- The scan over the segments of a tile

template <RglruConfig kConfig>
struct RglruScan {
    RglruSteps<kConfig>& shared;
    int buffer = 0;

    // The composed map of the segments before this one in its warp; with channels last, a warp is one segment of each channel.
    struct Before {
        float log = 0.f, added = 0.f;
    };

    // Writes the map of the warp (channels last: of the segment) to shared memory. kForward: segments are composed from the
    // first on.
    template <bool kForward>
    __device__ __forceinline__ Before publish(float log, float added) const {
        using Place = RglruPlace<kConfig>;
        Before before;
        if constexpr (!kConfig.channels_last) {
            const int passed = kForward ? Place::lane() : 31 - Place::lane();
            const auto shuffled = [](float x, int lanes) {
                return kForward ? __shfl_up_sync(0xffffffffu, x, lanes) : __shfl_down_sync(0xffffffffu, x, lanes);
            };
#pragma unroll
            for (int lanes = 1; lanes < 32; lanes *= 2) {
                const float other_log = shuffled(log, lanes), other_added = shuffled(added, lanes);
                if (passed >= lanes) {
                    added = state_after(log, other_added, added);
                    log += other_log;
                }
            }
            before = {shuffled(log, 1), shuffled(added, 1)};
            if (passed == 31) shared.at[buffer][Place::warp()][0] = step_of(log, added);
        } else {
            shared.at[buffer][Place::warp()][Place::lane()] = step_of(log, added);
        }
        return before;
    }
    // Call after a barrier: returns the state before this thread's segment; `carried`, the state before the tile, becomes that
    // after it.
    template <bool kForward>
    __device__ __forceinline__ float enter(const Before& before, RglruState& carried) const {
        using Place = RglruPlace<kConfig>;
        constexpr int kWarps = kConfig.warps();
        RglruChain chain{carried.value};
        float start = carried.value;
#pragma unroll 4  // more loads in flight would cost registers
        for (int i = 0; i < kWarps; ++i) {
            const int warp = kForward ? i : kWarps - 1 - i;
            if (warp == Place::warp()) start = chain.state;
            chain.apply(shared.at[buffer][warp][Place::column()]);
        }
        carried = chain.after(carried);
        if constexpr (!kConfig.channels_last)
            if ((kForward ? Place::lane() : 31 - Place::lane()) > 0) start = state_after(before.log, start, before.added);
        return start;
    }
    __device__ __forceinline__ void swap_buffers() { buffer ^= 1; }
};

}  // namespace gdn_cuda::scan
