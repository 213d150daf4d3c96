// scan/selective_backward: loads B and C of a chunk, if they vary, into tiles.
#pragma once

#include <gdn_cuda/kernels/common/raw_vector.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/block.cuh>

namespace gdn_cuda::scan {

template <SelectiveBackwardConfig kConfig>
struct BackwardCoefficients : BackwardBlock<kConfig> {
    using Block = BackwardBlock<kConfig>;
    using Block::args, Block::in, Block::place, Block::shared;
    using Block::kColumns, Block::kGroup, Block::kParts;
    using Block::offset_by, Block::global, Block::varies;
    using typename Block::Config;

    __device__ __forceinline__ char* base_of(const Coefficients& x) const {
        const i64 offset = place.batch * x.batch + place.channel / (in.dim / x.groups) * x.group + args.first_state * x.n +
                           place.start * x.token;
        return static_cast<char*>(x.data) + (offset << (x.type == DType::f32 ? 2 : 1));
    }
    __device__ __forceinline__ void keep_rows() const {
        shared.coefficients[0] = varies(in.B) ? base_of(in.B) : nullptr;
        shared.coefficients[1] = varies(in.C) ? base_of(in.C) : nullptr;
    }
    // Vectors of four floats, along tokens or along states, whichever is contiguous in memory.
    static constexpr int kRow = kColumns / 4, kVectors = kStateChunk * kRow;
    static constexpr int kVectorsPerThread = kVectors < Config::kThreads ? 1 : kVectors / Config::kThreads;
    struct At {
        int token, n;
        bool exists;
    };
    __device__ __forceinline__ static At at(unsigned i, bool along_tokens) {
        constexpr int kStatesPerVector = 4 / kParts;
        const unsigned token = along_tokens ? i / kGroup * kStatesPerVector : i / kRow;
        const unsigned n = along_tokens ? i % kGroup : i % kRow * kStatesPerVector;
        return {static_cast<int>(token), static_cast<int>(n), kVectors % Config::kThreads == 0 || i < kVectors};
    }
    __device__ __forceinline__ static bool along_tokens(const Coefficients& x) { return x.n != kParts; }
    __device__ __forceinline__ static void put(float (*to)[kColumns], const At& at, bool along_tokens, const float (&x)[4]) {
        if (along_tokens) {
#pragma unroll
            for (int j = 0; j < 4; ++j) to[at.token + j / kParts][at.n * kParts + j % kParts] = x[j];
        } else {
            *reinterpret_cast<float4*>(&to[at.token][at.n * kParts]) = {x[0], x[1], x[2], x[3]};
        }
    }
    struct Strides {
        unsigned token, n, part;  // in bytes
    };
    __device__ __forceinline__ static Strides strides_of(const Coefficients& x) {
        const int shift = x.type == DType::f32 ? 2 : 1;
        return {static_cast<unsigned>(x.token) << shift, static_cast<unsigned>(x.n) << shift,
                static_cast<unsigned>(x.pair) << shift};
    }
    __device__ __forceinline__ int states() const { return min(in.state_size - args.first_state, kGroup); }
    __device__ __forceinline__ bool are_vectors(int tokens) const {
        return args.coefficients_are_vectors && tokens == kStateChunk && states() == kGroup;
    }
    template <class F>
    __device__ __forceinline__ void each_varying(const F& call) const {
        if (varies(in.B)) call(0, in.B, shared.B);
        if (varies(in.C)) call(1, in.C, shared.C);
    }

    // A thread's vectors of B and C, loaded together.
    struct InFlight {
        RawVector<4> vectors[2][kVectorsPerThread];
    };
    __device__ __forceinline__ void load(InFlight& x, int first, int tokens) const {
        if (!are_vectors(tokens)) return;
        each_varying([&](int which, const Coefficients& from, float(*)[kColumns]) {
            const Strides strides = strides_of(from);
            const char* base = offset_by(global(shared.coefficients[which]), first, strides.token);
#pragma unroll
            for (int i = 0; i < kVectorsPerThread; ++i) {
                const At at = this->at(recomputed_thread() + i * Config::kThreads, along_tokens(from));
                if (at.exists)
                    x.vectors[which][i].load(offset_by(offset_by(base, at.token, strides.token), at.n, strides.n), from.type);
            }
        });
    }
    __device__ __forceinline__ void make(const InFlight& loaded, int first, int tokens) const {
        if (!are_vectors(tokens)) return make_each(first, tokens);
        each_varying([&](int which, const Coefficients& from, float(*to)[kColumns]) {
#pragma unroll
            for (int i = 0; i < kVectorsPerThread; ++i) {
                const At at = this->at(recomputed_thread() + i * Config::kThreads, along_tokens(from));
                float x[4];
                loaded.vectors[which][i].to_floats(from.type, x);
                if (at.exists) put(to, at, along_tokens(from), x);
            }
        });
    }
    // Element by element, if rows are not vectors or the tile is not whole. Elements that do not exist are 0.
    __device__ __forceinline__ void make_each(int first, int tokens) const {
        const int states = this->states();
#pragma unroll 1
        for (int which = 0; which < 2; ++which) {
            const Coefficients& from = which == 0 ? in.B : in.C;
            if (!varies(from)) continue;
            auto* to = which == 0 ? shared.B : shared.C;
            const char* base = global(shared.coefficients[which]);
            const bool along_tokens = this->along_tokens(from);
            const Strides strides = strides_of(from);
#pragma unroll 1
            for (unsigned i = recomputed_thread(); i < kVectors; i += Config::kThreads) {
                const At at = this->at(i, along_tokens);
                const char* begin = offset_by(offset_by(base, first + at.token, strides.token), at.n, strides.n);
                const bool exist = at.token < tokens && at.n < states;
                const int count = exist ? (along_tokens ? tokens - at.token : states - at.n) * kParts : 0;
                const unsigned next = along_tokens ? strides.token : strides.n;
                const auto address = [&](int j) {
                    return offset_by(offset_by(begin, j / kParts, next), j % kParts, strides.part);
                };
                RawVector<4> raw;
                float x[4];
                if (from.type == DType::f32)
                    raw.load_each<unsigned>(count, address);
                else
                    raw.load_each<unsigned short>(count, address);
                raw.to_floats<true>(from.type, x);
                put(to, at, along_tokens, x);
            }
        }
    }
};

}  // namespace gdn_cuda::scan
