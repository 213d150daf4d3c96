// conv/hyena_modal_step: one or several tokens of a filter in modal form, with states in slots of a pool:
//
//     s ← e^{log_poles} s + x1 v,   y = x2 (Σ residues s + D x1 v)
//
// A channel has 4 or 16 lanes of a warp, and a lane 4 consecutive states in registers. Poles are raised once for all
// sequences of a block; a sequence's state is loaded while the previous one is computed. A slow pole is applied as s + (p −
// 1) s, because p rounded to fp32 would change its decay rate, by 3 % at e^−1e−6.
//
// The common case is compiled in: fp32 states, residues and poles in rows of 16-byte units, and tokens of one dtype.
// Otherwise switches on dtypes would be most of the instructions.
//
// Bound: memory, 2 S state values a row; with few sequences the latency of two dependent loads (slot, state).
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/hyena/common.cuh>
#include <gdn_cuda/kernels/conv/hyena_step/block.cuh>

namespace gdn_cuda::conv {

// The bits of four values of a row, of which `count` exist.
template <bool kVectors>
__device__ __forceinline__ void load_four(unsigned (&x)[4], const Tagged& from, i64 at, i64 stride, int count) {
    uint4 loaded{};
    if constexpr (kVectors) {
        if (count > 0) loaded = *reinterpret_cast<const uint4*>(static_cast<const float*>(from.data) + at);
    } else {
        if (count > 0) loaded.x = load_raw(from, at);
        if (count > 1) loaded.y = load_raw(from, at + stride);
        if (count > 2) loaded.z = load_raw(from, at + 2 * stride);
        if (count > 3) loaded.w = load_raw(from, at + 3 * stride);
    }
    x[0] = loaded.x, x[1] = loaded.y, x[2] = loaded.z, x[3] = loaded.w;
}

template <HyenaModalStepConfig kConfig>
struct ModalStep {
    using Io = Storage<kConfig.io>;
    static constexpr int kLanes = kConfig.lanes, kElements = kConfig.elements();
    static constexpr float kOffsetBelow = 0.25f;  // below this |log pole|, p − 1 is applied

    const HyenaModalStepArgs& args;
    bool exists;  // threads past the last channel take part in shuffles only
    int channel, first_sequence, lane, first_state = lane * kElements;
    // At the sequence that is loaded next.
    const char *x2 = token(args.x2, first_sequence), *x1 = token(args.x1, first_sequence), *v = token(args.v, first_sequence);
    char* out = token(args.out, first_sequence);  // at the sequence that is computed
    char* states =                                // in slot 0
        static_cast<char*>(args.states) +
        (channel * args.state_channel + first_state * args.state_position) * bytes_of(state_type());
    float residue[kElements]{}, rate[kElements]{}, D = 0.f;
    unsigned keep_mask[kElements]{};  // all ones if the rate is p − 1, else zero

    __device__ __forceinline__ bool has_state(int i) const { return first_state + (kConfig.vectors ? 0 : i) < args.count; }
    __device__ __forceinline__ DType state_type() const { return kConfig.vectors ? DType::f32 : args.state_type; }
    __device__ __forceinline__ static DType type_of(const HyenaTokens& x) {
        return kConfig.vectors ? kConfig.io : x.values.type;
    }
    __device__ __forceinline__ char* token(const HyenaTokens& x, int sequence) const {
        return static_cast<char*>(const_cast<void*>(x.values.data)) +
               (sequence * x.sequence + channel * x.channel) * bytes_of(type_of(x));
    }
    __device__ __forceinline__ static unsigned load_token(const HyenaTokens& x, const char* from) {
        if constexpr (!kConfig.vectors)
            return load_raw({from, x.values.type}, 0);
        else if constexpr (sizeof(Io) == sizeof(unsigned))
            return *reinterpret_cast<const unsigned*>(from);
        else
            return *reinterpret_cast<const unsigned short*>(from);
    }
    __device__ __forceinline__ void store_token(char* to, float y) const {
        if constexpr (kConfig.vectors)
            *reinterpret_cast<Io*>(to) = from_float<Io>(y);
        else
            store_float(to, args.out.values.type, 0, y);
    }

    __device__ __forceinline__ void load_filter() {
        if (!exists) return;
        const i64 group = channel / args.group_channels;
        unsigned residues[kElements], poles[kElements];
        load_four<kConfig.vectors>(residues, args.residues, group * args.residues_group + first_state * args.residues_state,
                                   args.residues_state, args.count - first_state);
        load_four<kConfig.vectors>(poles, args.log_poles, group * args.log_poles_group + first_state * args.log_poles_state,
                                   args.log_poles_state, args.count - first_state);
        D = load_float(args.D, channel * args.D_channel);
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
            const float log_pole = to_float(poles[i], kConfig.vectors ? DType::f32 : args.log_poles.type);
            residue[i] = to_float(residues[i], kConfig.vectors ? DType::f32 : args.residues.type);
            const bool offset = fabsf(log_pole) < kOffsetBelow;
            keep_mask[i] = offset ? ~0u : 0u;
            rate[i] = offset ? expm1_small(log_pole) : exp_fast(log_pole);
        }
    }

    // A sequence in flight. Nothing is converted here, so nothing waits for the loads.
    struct Loaded {
        char* states = nullptr;  // the lane's first state in the pool; null: the sequence does not run
        unsigned state[kElements];
        unsigned gate, x1, v;  // the first token's
    };
    __device__ __forceinline__ Loaded load(int sequence) {
        Loaded loaded;
        i64 slot;
        if (exists && slot_of(args, sequence, slot) == Place::run) {
            loaded.states = states + slot * args.state_slot * bytes_of(state_type());
            load_four<kConfig.vectors>(loaded.state, {loaded.states, state_type()}, 0, args.state_position,
                                       args.count - first_state);
            loaded.gate = load_token(args.x2, x2);
            loaded.x1 = load_token(args.x1, x1);
            loaded.v = load_token(args.v, v);
        }
        x2 += args.x2.sequence * bytes_of(type_of(args.x2));
        x1 += args.x1.sequence * bytes_of(type_of(args.x1));
        v += args.v.sequence * bytes_of(type_of(args.v));
        return loaded;
    }
    __device__ __forceinline__ void load_later_token(Loaded& to, int sequence, int t) const {
        const auto load = [&](const HyenaTokens& x) {
            return load_token(x, token(x, sequence) + t * x.token * bytes_of(type_of(x)));
        };
        to.gate = load(args.x2);
        to.x1 = load(args.x1);
        to.v = load(args.v);
    }

    // Advances the states by a token, and returns its output to all lanes of the row.
    __device__ __forceinline__ float advance(float (&state)[kElements], const Loaded& loaded) const {
        const float u = to_float(loaded.x1, type_of(args.x1)) * to_float(loaded.v, type_of(args.v));
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
            state[i] = fmaf(rate[i], state[i], __uint_as_float(__float_as_uint(state[i]) & keep_mask[i]) + u);
            if (has_state(i)) sum = fmaf(residue[i], state[i], sum);
        }
        return to_float(loaded.gate, type_of(args.x2)) * fmaf(D, u, group_sum<kLanes>(sum));
    }
    __device__ __forceinline__ void run(int sequence, Loaded loaded) const {
        const bool runs = loaded.states != nullptr, writes = runs && lane == 0;
        float state[kElements];
#pragma unroll
        for (int i = 0; i < kElements; ++i) state[i] = to_float(loaded.state[i], state_type());
        const float y = advance(state, loaded);
        if (writes) store_token(out, y);
        char* to = out;
#pragma unroll 1
        for (int t = 1; t < args.tokens; ++t) {
            to += args.out.token * bytes_of(type_of(args.out));
            if (runs) load_later_token(loaded, sequence, t);
            const float later = advance(state, loaded);
            if (writes) store_token(to, later);
        }
        if (runs) store(loaded.states, state);
    }
    __device__ __forceinline__ void store(char* to, const float (&state)[kElements]) const {
        if constexpr (kConfig.vectors) {
            if (has_state(0)) *reinterpret_cast<float4*>(to) = {state[0], state[1], state[2], state[3]};
        } else {
#pragma unroll
            for (int i = 0; i < kElements; ++i)
                if (has_state(i)) store_float(to, args.state_type, i * args.state_position, state[i]);
        }
    }
    // Fills the output of a sequence that does not run.
    __device__ __forceinline__ void fill(int sequence) const {
        i64 slot;
        const float y = slot_of(args, sequence, slot) == Place::skip ? 0.f : quiet_nan();
        const i64 token_bytes = args.out.token * bytes_of(type_of(args.out));
#pragma unroll 1
        for (int t = lane; t < args.tokens; t += kLanes) store_token(out + t * token_bytes, y);
    }
};

template <HyenaModalStepConfig kConfig>
__global__ void __launch_bounds__(kHyenaStepThreads, blocks_without_spills(kConfig.blocks()))
    hyena_modal_step(const __grid_constant__ HyenaModalStepArgs args) {
    const HyenaStepBlock block(args, kConfig.rows());
    const i64 channel = block.first_channel + threadIdx.x / kConfig.lanes;
    const bool exists = channel < args.channels;
    int lane = threadIdx.x % kConfig.lanes;
    asm volatile("" : "+r"(lane));  // opaque: the compiler would read threadIdx again for every use
    ModalStep<kConfig> step{args, exists, exists ? static_cast<int>(channel) : 0, block.first, lane};
    typename ModalStep<kConfig>::Loaded loaded = step.load(block.first);
    step.load_filter();
#pragma unroll 1
    for (int sequence = block.first; sequence < block.end; ++sequence) {
        typename ModalStep<kConfig>::Loaded next;
        if (sequence + 1 < block.end) next = step.load(sequence + 1);
        step.run(sequence, loaded);
        if (exists && loaded.states == nullptr) step.fill(sequence);
        step.out += args.out.sequence * bytes_of(step.type_of(args.out));
        loaded = next;
    }
}

}  // namespace gdn_cuda::conv
