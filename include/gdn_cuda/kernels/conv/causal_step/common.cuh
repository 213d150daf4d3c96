// Shared by the kernels of causal_conv1d_update: where a sequence's tokens and state are, which columns of the state it
// reads and writes, taps, and the activation.
//
// The history is the W - 1 inputs before the first token. In every window, it is read from columns `first`, first + 1, …;
// its i-th value is written to column i + history_to, and token t to column t + token_to, each if that is not negative. So
// one loop serves all three windows; only a state longer than the history also moves columns within itself.
#pragma once

#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/causal_step/plan.cuh>

namespace gdn_cuda::conv {

struct StepSequence {
    Place place;
    i64 start;   // first token
    int length;  // tokens
    int first;   // column of the oldest value of the history
    i64 slot;    // the state's slot

    __device__ __forceinline__ int history_column(const CausalStepArgs& args, int i) const {
        const int column = first + i;
        return args.window == StateWindow::circular && column >= args.columns ? column - args.columns : column;
    }
    // A circular state leaves its history in place.
    __device__ __forceinline__ int history_to(const CausalStepArgs& args) const {
        if (args.window == StateWindow::last) return args.columns - (args.width - 1) - length;
        return args.window == StateWindow::verify ? -1 : -args.width;
    }
    __device__ __forceinline__ int token_to(const CausalStepArgs& args) const {
        if (args.window == StateWindow::last) return args.columns - length;
        return args.window == StateWindow::verify ? args.width - 2 : history_column(args, args.width - 1);
    }
    // The column after `column`, and the first token that is written to the state at all.
    __device__ __forceinline__ static int column_after(const CausalStepArgs& args, int column) {
        return args.window == StateWindow::circular && column + 1 == args.columns ? 0 : column + 1;
    }
    __device__ __forceinline__ int kept_from(const CausalStepArgs& args) const {
        if (args.window == StateWindow::verify) return args.width == 1 ? 1 : 0;
        return max(length - args.columns, 0);
    }
    // How many columns 0, 1, … get the values of the columns `length` further on, excluding those of the history.
    __device__ __forceinline__ int moved(const CausalStepArgs& args) const {
        return args.window == StateWindow::last ? max(history_to(args), 0) : 0;
    }
};

// Sequence n of the call. An invalid slot, or more tokens than a verify window has columns for, poisons the output and
// writes nothing else; an accepted count is clamped.
__device__ __forceinline__ StepSequence step_sequence(const CausalStepArgs& args, int n) {
    StepSequence sequence{Place::run, 0, args.tokens, args.columns - (args.width - 1), n};
    if (args.slots.data != nullptr) {
        sequence.slot = load_index(args.slots, n * args.slots_sequence);
        sequence.place = place_of(args, sequence.slot);
    }
    if (args.plain) return sequence;
    const Span span = span_of(args.cu_seqlens, n, args.tokens);
    sequence.start = span.start, sequence.length = span.length;
    if (args.window == StateWindow::circular) {
        const int at = static_cast<int>(load_index(args.cache_seqlens, n) % args.columns);  // has the sign of the count
        const int first = at - (args.width - 1);
        sequence.first = first < -args.columns ? first + 2 * args.columns : first < 0 ? first + args.columns : first;
    } else if (args.window == StateWindow::verify) {
        const int most = args.columns - args.width + 2;  // tokens that fit
        const i64 accepted = load_index(args.accepted, n);
        sequence.first = static_cast<int>(min(max(accepted, i64{1}), static_cast<i64>(max(most, 1)))) - 1;
        if (sequence.place == Place::run && sequence.length > most) sequence.place = Place::poison;
    }
    return sequence;
}

// The output of a sequence whose slot is skipped or invalid.
__device__ __forceinline__ float output_without_state(Place place) {
    return place == Place::skip ? 0.f : quiet_nan();
}

// Tokens after the last sequence of a packed batch; the last sequence's block sets their output to 0.
struct Tail {
    i64 start = 0;
    int length = 0;
};
__device__ __forceinline__ Tail tail_after(const CausalStepArgs& args, int n, const StepSequence& sequence) {
    if (args.cu_seqlens.data == nullptr || n + 1 < args.sequences) return {};
    const i64 end = sequence.start + sequence.length;
    return {end, static_cast<int>(args.tokens - end)};
}

__device__ __forceinline__ float activated(float y, bool silu) {
    return silu ? y * sigmoid(y) : y;
}
// The activation of outputs in `kIo`, with one branch for the vector. 16-bit outputs hide the error of the fast exponential.
template <DType kIo, int kVector>
__device__ __forceinline__ void activate(float (&y)[kVector], bool silu) {
    constexpr float kLog2e = 1.44269504f;
    if (!silu) return;
#pragma unroll
    for (int v = 0; v < kVector; ++v)
        y[v] = kIo == DType::f32 ? activated(y[v], true) : y[v] * reciprocal_fast(1.f + exp2_fast(-kLog2e * y[v]));
}

// Taps and biases of kVector contiguous channels, in fp32.
template <int kWidth, int kVector>
struct StepTaps {
    float tap[kWidth][kVector], bias[kVector];

    // Contiguous values in flight. 32-bit and 16-bit values have separate registers: a shared one would make either load
    // wait for the other, although only one of them is executed.
    template <int kCount>
    struct Contiguous {
        unsigned wide[kCount] = {}, narrow[kCount / 2] = {};

        __device__ __forceinline__ void load(const Tagged& from, i64 at) {
            if (from.type == DType::f32)
                load_words(wide, static_cast<const float*>(from.data) + at);
            else
                load_words(narrow, static_cast<const unsigned short*>(from.data) + at);
        }
        template <class Each>
        __device__ __forceinline__ void for_each(DType type, const Each& each) const {
            if (type == DType::f32)
                for_each<DType::f32>(each);
            else if (type == DType::bf16)
                for_each<DType::bf16>(each);
            else
                for_each<DType::f16>(each);
        }

      private:
        template <DType kType, class Each>
        __device__ __forceinline__ void for_each(const Each& each) const {
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                const unsigned pair = narrow[i / 2];
                each(i, to_float(kType == DType::f32 ? wide[i] : i % 2 == 0 ? pair & 0xffff : pair >> 16, kType));
            }
        }
        template <int kWords>
        __device__ __forceinline__ static void load_words(unsigned (&to)[kWords], const void* from) {
            constexpr int kUnit = kWords % 4 == 0 ? 4 : 2;
#pragma unroll
            for (int i = 0; i < kWords / kUnit; ++i) {
                Raw<kUnit * 4> unit;
                unit.load(static_cast<const unsigned*>(from) + i * kUnit);
                to[i * kUnit] = unit.bits.x, to[i * kUnit + 1] = unit.bits.y;
                if constexpr (kUnit == 4) to[i * kUnit + 2] = unit.bits.z, to[i * kUnit + 3] = unit.bits.w;
            }
        }
    };
    struct Loading {
        Contiguous<kWidth * kVector> taps;
        Contiguous<kVector> biases;

        __device__ __forceinline__ Loading(const CausalStepArgs& args, i64 channel) {
            if (args.weight_vectors) taps.load(args.weight, channel * kWidth);
            if (args.bias_vectors) biases.load(args.bias, channel);
        }
    };
    // Converts what is in flight, and loads what is not contiguous.
    __device__ __forceinline__ void finish(const Loading& loading, const CausalStepArgs& args, i64 channel) {
        if (!args.bias_vectors) load_biases(args, channel);
        if (!args.weight_vectors) load_taps(args, channel);
        if (args.bias_vectors) loading.biases.for_each(args.bias.type, [&](int i, float x) { bias[i] = x; });
        if (args.weight_vectors)
            loading.taps.for_each(args.weight.type, [&](int i, float x) { tap[i % kWidth][i / kWidth] = x; });
    }
    template <DType kIo, class History, class X>
    __device__ __forceinline__ X output(const History& history, const X& x, bool silu) const {
        float y[kVector];
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
            y[v] = bias[v];
#pragma unroll
            for (int k = 0; k < kWidth - 1; ++k) y[v] = fmaf(tap[k][v], history(k, v), y[v]);
            y[v] = fmaf(tap[kWidth - 1][v], x[v], y[v]);
        }
        activate<kIo>(y, silu);
        X out;
#pragma unroll
        for (int v = 0; v < kVector; ++v) out.set(v, y[v]);
        return out;
    }

  private:
    // All loads are issued before the first value is used.
    __device__ __forceinline__ void load_biases(const CausalStepArgs& args, i64 channel) {
        RawElement raw[kVector];
        if (args.bias.data != nullptr)
#pragma unroll
            for (int v = 0; v < kVector; ++v) raw[v].load(args.bias, (channel + v) * args.bias_channel);
#pragma unroll
        for (int v = 0; v < kVector; ++v) bias[v] = raw[v].to_float(args.bias.type);
    }
    __device__ __forceinline__ void load_taps(const CausalStepArgs& args, i64 channel) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
#pragma unroll
            for (int v = 0; v < kVector; ++v)
                tap[k][v] = load_float(args.weight, (channel + v) * args.weight_channel + k * args.weight_tap);
    }
};

// A single store instruction; under a predicate the compiler splits the vector store into four.
template <class T, int kVector>
__device__ __forceinline__ void store_whole(const Vector<T, kVector, true>& vector, T* to) {
    if constexpr (kVector * sizeof(T) == 16)
        vector.store_global(to);
    else
        vector.store(to);
}

// Fills the outputs of tokens without a state with one value.
template <class T, int kVector>
__device__ __forceinline__ void fill_outputs(T* out, i64 token_stride, int tokens, float y) {
    Vector<T, kVector, true> filled;
    filled.fill(y);
#pragma unroll 1
    for (int t = 0; t < tokens; ++t, out += token_stride) filled.store(out);
}

}  // namespace gdn_cuda::conv
