// Chunks of gdn/prefill in which some gate's exponential is 0, which resets the state, while the state, a key, a value, a beta
// or another gate is not finite or so large that matrix products may overflow. 0 times infinity would spread NaN past the
// reset, so a value warpgroup takes such a chunk token by token: many times slower, and rare.
#pragma once

#include <gdn_cuda/kernels/chunked/state.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig, class PlanType = PrefillSharedPlan<kConfig>>
struct PrefillReset : PrefillState<kConfig, PlanType> {
    using Base = PrefillState<kConfig, PlanType>;
    using Base::args, Base::shared, Base::work, Base::state, Base::any_of_group, Base::index;
    using Base::kIo;
    using Base::thread, Base::warp, Base::g, Base::t;
    using Plan = typename Base::Plan;
    using Io = Storage<kIo>;
    static constexpr int kPieces = kConfig.head_k / 8;  // of a key; a thread holds two elements of each

    __device__ __forceinline__ PrefillReset(Plan& shared, const PrefillArgs& args, const PrefillWork& work)
        : Base(shared, args, work) {}

    // Whether a chunk that resets the state must be taken token by token; uniform over the warpgroup.
    __device__ __forceinline__ bool products_may_overflow(int chunk) const {
        constexpr float kLimit = 1e18f;  // 128 products of two smaller numbers sum to a finite one
        const int at = ChunkStage<kConfig.stages>(chunk).stage;
        const auto& stage = shared.stages[at];
        float largest = 0.f;  // or NaN
#pragma unroll
        for (const float s : state) largest = at_least(largest, fabsf(s));
        const auto scan = [&](const PrefillTile& tile) {
            constexpr int kPairs = sizeof(PrefillTile) / sizeof(unsigned);
#pragma unroll 1
            for (int i = thread; i < kPairs; i += kWarpgroup) {
                const float2 pair = unpack<kIo>(reinterpret_cast<const unsigned*>(tile.bytes)[i]);
                largest = at_least(at_least(largest, fabsf(pair.x)), fabsf(pair.y));
            }
        };
#pragma unroll 1
        for (int i = 0; i < kConfig.key_tiles(); ++i) scan(stage.key[i]);
        scan(stage.value[index()]);
        const auto& factors = shared.factors[at];
        const float beta = factors.beta[thread % kChunk], gate = factors.gate[thread % kChunk];
        return any_of_group(!(at_least(largest, fabsf(beta)) < kLimit) || isnan(gate));
    }

    // The recurrence over a chunk's tokens in fp32. Writes the output tile: no TMA store may still be reading it.
    __device__ __forceinline__ void run_tokens(int chunk) {
        auto& stage = shared.stages[ChunkStage<kConfig.stages>(chunk).stage];
        PrefillTile& outputs = shared.output[index()];
        const int count = tokens_in(work, chunk);
#pragma unroll 1
        for (int token = 0; token < count; ++token) {
            const float decay = exp2_fast(scalar_at(args.recurrence.gate, chunk, token) * kLog2e);
            const float beta = scalar_at(args.recurrence.beta, chunk, token);
            float of_key[2] = {}, of_query[2] = {}, key_square = 0.f, query_square = 0.f;
#pragma unroll
            for (int n = 0; n < kPieces; ++n) {
                const float2 key = pair_of(stage.key, token, n);
                key_square = fmaf(key.x, key.x, fmaf(key.y, key.y, key_square));
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float &s = state[4 * n + 2 * half], &s_next = state[4 * n + 2 * half + 1];
                    s = decay == 0.f ? 0.f : s * decay;
                    s_next = decay == 0.f ? 0.f : s_next * decay;
                    of_key[half] = fmaf(s, key.x, fmaf(s_next, key.y, of_key[half]));
                }
            }
            const float key_norm = inverse_norm(key_square);
            float change[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Io value = element(stage.value[index()], token, half);
                change[half] = beta * (to_float(value) - key_norm * over_row(of_key[half])) * key_norm;
            }
#pragma unroll
            for (int n = 0; n < kPieces; ++n) {
                const float2 key = pair_of(stage.key, token, n), query = pair_of(stage.query, token, n);
                query_square = fmaf(query.x, query.x, fmaf(query.y, query.y, query_square));
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float &s = state[4 * n + 2 * half], &s_next = state[4 * n + 2 * half + 1];
                    s = fmaf(change[half], key.x, s);
                    s_next = fmaf(change[half], key.y, s_next);
                    of_query[half] = fmaf(s, query.x, fmaf(s_next, query.y, of_query[half]));
                }
            }
            const float query_norm = args.recurrence.scale * inverse_norm(query_square);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float output = query_norm * over_row(of_query[half]);
                if (t == 0) element(outputs, token, half) = from_float<Io>(output);
            }
        }
    }

  private:
    // Gate or beta of a token.
    __device__ __forceinline__ float scalar_at(const Scalars& of, int chunk, int token) const {
        const i64 at = work.start + chunk * kChunk + token;
        return load_number(of.values, work.sequence * of.batch + at * of.token + work.head * of.head);
    }
    // Columns 8 n + 2 t and + 1 of a key or query.
    __device__ __forceinline__ float2 pair_of(const PrefillTile* tiles, int token, int n) const {
        return unpack<kIo>(load_shared_word(row_piece(tile_row(tiles[n / 8].bytes, token), n % 8) + 4 * t));
    }
    // Element of a value or output tile in this thread's first or second state row.
    __device__ __forceinline__ Io& element(PrefillTile& tile, int token, int half) const {
        return reinterpret_cast<Io*>(tile.bytes + token * 128 + (((2 * warp + half) ^ token % 8) << 4))[g];
    }
    // Sum over the four threads that share a row.
    __device__ __forceinline__ static float over_row(float x) {
        x += __shfl_xor_sync(0xffffffffu, x, 1);
        return x + __shfl_xor_sync(0xffffffffu, x, 2);
    }
    __device__ __forceinline__ float inverse_norm(float square) const {
        square = over_row(square);
        return args.recurrence.qk_norm ? rsqrtf(square + kNormEpsilon) : 1.f;
    }
};

}  // namespace gdn_cuda::gdn
