// The role of gdn/prefill that owns the state: a warpgroup keeps 64 rows of it in registers and takes them from chunk to chunk.
// Everything is transposed (value rows x tokens), so that the state, X and V' are left operands straight from registers.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_common.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig>
struct PrefillValues : Lane {
    static constexpr DType kIo = kConfig.io;
    static constexpr int kStateSteps = kConfig.head_k / 16, kTokenSteps = kChunk / 16;

    PrefillSharedPlan<kConfig>& shared;
    const PrefillArgs& args;
    const PrefillWork& work = shared.work;

    float state[kConfig.head_k / 2];
    unsigned rounded_state[kStateSteps][4];

    __device__ __forceinline__ PrefillValues(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args)
        : shared(shared), args(args) {
        find_place();
    }

    __device__ __forceinline__ int index() const { return group - kConfig.helper_groups; }  // among the value groups
    __device__ __forceinline__ void gather() const { meet(kValuesMeet + index(), kWarpgroup); }

    // This thread has rows g and g + 8 of its warp's sixteen, columns 8 n + 2 t and the next. Calls visit(pair of numbers,
    // element in the head's state) for those that exist.
    template <class Visit>
    __device__ __forceinline__ void each_pair(Visit&& visit) {
        const int dk = args.recurrence.dk, dv = args.recurrence.dv;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = work.first_row + index() * kValueRows + 16 * warp + g + 8 * half;
            const i64 at = (static_cast<i64>(work.head) * dv + row) * dk + 2 * t;
#pragma unroll
            for (int n = 0; n < kConfig.head_k / 8; ++n)
                if (row < dv && 8 * n < dk) visit(state[4 * n + 2 * half], state[4 * n + 2 * half + 1], at + 8 * n);
        }
    }
    __device__ __forceinline__ void load_state() {
#pragma unroll
        for (float& x : state) x = 0.f;
        const void* from = args.recurrence.initial.data;
        if (from == nullptr) return;
        if (args.state == DType::f32) {
            const float* slot = static_cast<const float*>(from) + work.initial_slot;
            each_pair([&](float& x, float& y, i64 at) {
                const float2 pair = *reinterpret_cast<const float2*>(slot + at);
                x = pair.x;
                y = pair.y;
            });
        } else {
            const auto* slot = static_cast<const __nv_bfloat16*>(from) + work.initial_slot;
            each_pair([&](float& x, float& y, i64 at) {
                const float2 pair = unpack<DType::bf16>(*reinterpret_cast<const unsigned*>(slot + at));
                x = pair.x;
                y = pair.y;
            });
        }
    }
    __device__ __forceinline__ void store_state(void* slot) {
        if (slot == nullptr) return;
        if (args.state == DType::f32) {
            each_pair([&](float& x, float& y, i64 at) { *reinterpret_cast<float2*>(static_cast<float*>(slot) + at) = {x, y}; });
        } else {
            each_pair([&](float& x, float& y, i64 at) {
                *reinterpret_cast<unsigned*>(static_cast<__nv_bfloat16*>(slot) + at) = pack<DType::bf16>(x, y);
            });
        }
    }
    // Where the state after a chunk goes: as a checkpoint, as the last, or nowhere.
    __device__ __forceinline__ void* checkpoint(int chunk) const {
        const int token = (chunk + 1) * kChunk - 1;
        if (args.recurrence.steps.data == nullptr || token >= work.length) return nullptr;
        if (args.state == DType::f32) return step_state<float>(args.recurrence, work.sequence, work.checkpoints_before, token);
        return step_state<__nv_bfloat16>(args.recurrence, work.sequence, work.checkpoints_before, token);
    }
    __device__ __forceinline__ void* last() const {
        char* data = static_cast<char*>(args.recurrence.last.data);
        return data == nullptr ? nullptr : data + work.last_slot * bytes_of(args.state);
    }
    __device__ __forceinline__ void round_state() {
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                rounded_state[step][i] = pack<kIo>(state[8 * step + 2 * i], state[8 * step + 2 * i + 1]);
    }

    // d = S x^T for the tokens of a chunk of keys or queries.
    __device__ __forceinline__ void start_with_state(float (&d)[32], const PrefillTile* tokens) {
        const auto right = tile_descriptor(tokens, 0);
        products_begin();
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step)
            Product<kIo, 64, true>::run(d, rounded_state[step], right + along(step), step > 0);
        products_commit();
    }
    // d (+)= x m^T, x in registers, m one of the helpers' matrices, in one tile or as the sum of several.
    template <int kParts>
    __device__ __forceinline__ void start_with_tokens(float (&d)[32], const unsigned (&x)[kTokenSteps][4],
                                                      const PrefillTile& matrix, bool add) {
        const auto right = tile_descriptor(&matrix, 0);
        products_begin();
#pragma unroll
        for (int step = 0; step < kParts * kTokenSteps; ++step)
            Product<kIo, 64, true>::run(d, x[step % kTokenSteps], right + along(step), add || step > 0);
        products_commit();
    }
    __device__ __forceinline__ void start_update(const unsigned (&x)[kTokenSteps][4], const PrefillTile* keys) {
        const auto right = tile_descriptor(keys, sizeof(PrefillTile));
        products_begin();
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            Product<kIo, kConfig.head_k, false>::run(state, x[step], right + across(step), true);
        products_commit();
    }

    // Which row of the 8 x 8 matrices of 16 tokens and the warp's value rows this lane names.
    __device__ __forceinline__ unsigned matrix_row(const PrefillTile& tile) const {
        const int row = lane / 16 * 8 + lane % 8, piece = 2 * warp + lane / 8 % 2;
        return shared_address(tile.bytes) + (row * 128 | (piece ^ row % 8) << 4);  // one register for every tile
    }
    // This group's values of a chunk as a left operand, transposed on the way.
    __device__ __forceinline__ void load_values(unsigned (&x)[kTokenSteps][4], const PrefillTile& values) {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) load_transposed(x[step], matrix_row(values) + step * kStepAcross);
    }

    // Calls visit(step, i, x, y) for each pair of numbers that makes register i of a left operand of tokens.
    template <class Visit>
    __device__ __forceinline__ void each_token_pair(float (&x)[32], Visit&& visit) {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) visit(step, i, x[8 * step + 2 * i], x[8 * step + 2 * i + 1]);
    }
    __device__ __forceinline__ float2 factor(const float (&factors)[kChunk], int step, int i) const {
        return *reinterpret_cast<const float2*>(&factors[16 * step + i / 2 * 8 + 2 * t]);
    }

    __device__ __forceinline__ void store_output(float (&output)[32], int chunk) {
        PrefillTile& tile = shared.output[index()];
        if (thread == 0) wait_stores_read();
        gather();
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            store_transposed(matrix_row(tile) + step * kStepAcross, pack<kIo>(output[8 * step], output[8 * step + 1]),
                             pack<kIo>(output[8 * step + 2], output[8 * step + 3]),
                             pack<kIo>(output[8 * step + 4], output[8 * step + 5]),
                             pack<kIo>(output[8 * step + 6], output[8 * step + 7]));
        const RecurrentArgs& all = args.recurrence;
        const bool packed = all.cu_seqlens.data != nullptr;
        const int count = tokens_in(work, chunk), first_row = work.first_row + index() * kValueRows;
        if (packed && count < kChunk) {  // the copy engine would write over the next sequence
            gather();
            using Io = Storage<kIo>;
            Io* to = static_cast<Io*>(all.output.data) + (work.start + chunk * kChunk) * all.output.token +
                     work.head * all.output.head + first_row;
            for (int i = thread; i < count * 8; i += kWarpgroup)
                if (first_row + i % 8 * 8 < all.dv)
                    *reinterpret_cast<uint4*>(to + i / 8 * all.output.token + i % 8 * 8) =
                        load_shared(row_piece(tile_row(tile.bytes, i / 8), i % 8));
            return;
        }
        publish_shared();
        gather();
        if (thread == 0) {
            const int token = static_cast<int>(work.start) + chunk * kChunk;
            store_tile(args.output, {first_row, work.head, token, packed ? 0 : work.sequence}, tile.bytes);
            commit_stores();
        }
    }

    __device__ __forceinline__ void run() {
        load_state();
        if (work.chunks == 0) return store_state(last());
        round_state();
#pragma unroll 1
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            // Not carried along: every register counts here.
            const Turn<kConfig.stages> turn{chunk % kConfig.stages, static_cast<unsigned>(chunk) / kConfig.stages & 1};
            find_place();
            const auto& stage = shared.stages[turn.stage];
            const auto& matrices = shared.matrices[chunk % 2];
            const auto& factors = shared.factors[turn.stage];
            barrier(shared.loaded[turn.stage]).wait(turn.parity);
            barrier(shared.ready[turn.stage]).wait(turn.parity);

            float d[32];
            unsigned x[kTokenSteps][4];
            start_with_state(d, stage.key);
            load_values(x, stage.value[index()]);
            products_wait<0>();
            pin(d);
            const int count = tokens_in(work, chunk);
            each_token_pair(d, [&](int step, int i, float& s, float& s_next) {
                const float2 of_key = factor(factors.of_key, step, i), v = unpack<kIo>(x[step][i]);
                x[step][i] = pack<kIo>(v.x - of_key.x * s, v.y - of_key.y * s_next);
            });
            if (count < kChunk) mask_tokens(x, count);
            start_with_tokens<2>(d, x, matrices.inverse, false);
#pragma unroll
            for (float& s : state) s *= factors.decay;
            products_wait<0>();
            pin(d);
            unsigned update[kTokenSteps][4];
            each_token_pair(d, [&](int step, int i, float& v, float& v_next) {
                const float2 of_update = factor(factors.of_update, step, i);
                x[step][i] = pack<kIo>(v, v_next);
                update[step][i] = pack<kIo>(v * of_update.x, v_next * of_update.y);
            });
            start_update(update, stage.key);
            start_with_state(d, stage.query);
            products_wait<0>();
            pin(state);
            pin(d);
            round_state();
            each_token_pair(d, [&](int step, int i, float& o, float& o_next) {
                const float2 of_query = factor(factors.of_query, step, i);
                o *= of_query.x;
                o_next *= of_query.y;
            });
            start_with_tokens<1>(d, x, matrices.scores, true);
            products_wait<0>();
            pin(d);
            __syncwarp();
            if (lane == 0) {
                barrier(shared.free[turn.stage]).arrive();
                barrier(shared.used[chunk % 2]).arrive();
            }
            store_output(d, chunk);
            store_state(checkpoint(chunk));
        }
        store_state(last());
        if (thread == 0) wait_stores_read();
    }

    // Tokens past the end: whatever lies there, zero.
    __device__ __forceinline__ void mask_tokens(unsigned (&x)[kTokenSteps][4], int count) {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = 16 * step + i / 2 * 8 + 2 * t;
                if (token >= count)
                    x[step][i] = 0;
                else if (token + 1 >= count)
                    x[step][i] &= 0xffffu;
            }
    }
};

}  // namespace gdn_cuda::gdn
