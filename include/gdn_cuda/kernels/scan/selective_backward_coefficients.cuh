// The tiles of B and C of a chunk in scan/selective_backward, where they vary.
#pragma once

#include <gdn_cuda/kernels/scan/four.cuh>
#include <gdn_cuda/kernels/scan/selective_backward_block.cuh>

namespace gdn_cuda::scan {

template <SelectiveBackwardConfig kConfig>
struct BackwardCoefficients : BackwardBlock<kConfig> {
    using Block = BackwardBlock<kConfig>;
    using Block::along, Block::global, Block::varies;
    using Block::args, Block::in, Block::place, Block::shared;
    using Block::kColumns, Block::kGroup, Block::kParts;
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
    // Four real numbers at a time, along tokens or along states as they lie in memory: a vector, or each alone where the host
    // has found no vectors or the tile is ragged. Zeros where they do not exist.
    __device__ __forceinline__ void make(int first, int tokens) const {
        constexpr int kOfVector = 4 / kParts, kRow = kColumns / 4;
        const int states = min(in.state_size - args.first_state, kGroup);
        const bool vectors = args.coefficients_are_vectors && tokens == kStateChunk && states == kGroup;
#pragma unroll 1
        for (int which = 0; which < 2; ++which) {
            const Coefficients& from = which == 0 ? in.B : in.C;
            if (!varies(from)) continue;
            auto* to = which == 0 ? shared.B : shared.C;
            const bool along_tokens = from.n != kParts;
            char* base = global(shared.coefficients[which]);
            const int shift = from.type == DType::f32 ? 2 : 1;
            const unsigned of_token = static_cast<unsigned>(from.token) << shift;
            const unsigned of_n = static_cast<unsigned>(from.n) << shift;
            const unsigned of_part = static_cast<unsigned>(from.pair) << shift;
#pragma unroll 2
            for (unsigned i = thread_again(); i < kStateChunk * kRow; i += Config::kThreads) {
                const int token = along_tokens ? i / kGroup * kOfVector : i / kRow;
                const int n = along_tokens ? i % kGroup : i % kRow * kOfVector;
                const char* at = along(along(base, first + token, of_token), n, of_n);
                Four raw;
                float x[4];
                if (vectors) {
                    raw.load(at, from.type);
                    raw.to_floats(from.type, x);
                } else {
                    const bool exist = token < tokens && n < states;
                    const int count = exist ? (along_tokens ? tokens - token : states - n) * kParts : 0;
                    const unsigned next = along_tokens ? of_token : of_n;
                    const auto address = [&](int j) { return along(along(at, j / kParts, next), j % kParts, of_part); };
                    if (from.type == DType::f32)
                        raw.load_each<unsigned>(count, address);
                    else
                        raw.load_each<unsigned short>(count, address);
                    raw.to_floats<true>(from.type, x);
                }
                if (along_tokens) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) to[token + j / kParts][n * kParts + j % kParts] = x[j];
                } else {
                    *reinterpret_cast<float4*>(&to[token][n * kParts]) = {x[0], x[1], x[2], x[3]};
                }
            }
        }
    }
};

}  // namespace gdn_cuda::scan
