// A chunk of a group: its row tiles one after another. Of each, matrices of tokens x tokens first, then 64 states after 64 in
// two steps: what outputs read of S, and what tokens write into the state after. Sums over heads stay in registers.
#pragma once

#include <gdn_cuda/kernels/ssd/backward_mma/loads.cuh>

namespace gdn_cuda::ssd {

template <SsdBackwardMmaConfig kConfig>
struct ChunkGradients : BackwardMmaLoads<kConfig> {
    using Base = BackwardMmaLoads<kConfig>;
    using Base::shared, Base::args, Base::work, Base::kIo, Base::kBlocks, Base::kSteps, Base::clear, Base::row, Base::column,
        Base::row_block, Base::column_block, Base::is_below, Base::rows_of, Base::steps_of, Base::current;
    using Base::thread, Base::warp, Base::lane, Base::t;
    using typename Base::Io, typename Base::Plan, typename Base::Tile, typename Base::TileSums;

    // Tokens x tokens: C B^T, and N, sums of K ⊙ L. Tokens x states: sums over heads.
    TileSums CB, N, dC[kBlocks], dB[kBlocks];
    // Of the row tile. dW: tokens x channels.
    TileSums dW;
    float read[2], states;
    uint4 own_states[2];  // a slice of S

    using Base::Base;

    __device__ __forceinline__ int half() const { return warp / 4; }
    static __device__ __forceinline__ void add_to(float& sum, float x, bool begins) { sum = begins ? x : sum + x; }
    // Sums over the warp's columns, of each row.
    __device__ __forceinline__ void add_row_sums(float (&to)[kChunk], const float (&sums)[2], bool begins) const {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            float sum = sums[which];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (t == 0) add_to(to[row(2 * which)], sum, begins);
        }
    }
    __device__ __forceinline__ void add_warp_sum(float (&to)[SsdBackwardMmaConfig::kWarps], float sum, bool begins) const {
#pragma unroll
        for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) add_to(to[warp], sum, begins);
    }

    // ---- Tokens x tokens

    // M' to shared memory, N += K ⊙ L, and the sums of K ⊙ M' across tokens.
    __device__ __forceinline__ void form_scores(const RowTileAt& at) {
        if (!is_below()) return;
        const auto& [x, dy] = rows_of(at);
        const ChunkSteps& steps = steps_of(at);
        TileSums K;
        clear(K);
        this->add_by_rows(K, dy, x);
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const int token = row(2 * which);
            const float gate = steps.gate[token];
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int from = column(n, 0);
                const float2 gates = gdn_cuda::pair_at(&steps.gate[from]), deltas = gdn_cuda::pair_at(&steps.delta[from]);
                float score[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int e = 2 * which + i;
                    const float decay = token >= from + i ? exp2_fast(gate - (i == 0 ? gates.x : gates.y)) : 0.f;
                    const float product = decay == 0.f ? 0.f : K[n][e] * (i == 0 ? deltas.x : deltas.y) * decay;
                    N[n][e] += product;
                    K[n][e] = decay == 0.f ? 0.f : product * CB[n][e];
                    score[i] = decay == 0.f ? 0.f : CB[n][e] * decay;
                }
                store_shared(this->word_at(shared.scores, n, which), pack<kIo>(score[0], score[1]));
            }
        }
        store_across(shared.across[at.head % 2][row_block() + 2 * half()], reinterpret_cast<const float(&)[16]>(K), row(0),
                     16 * column_block(), lane, at.row > 0);
    }

    // ---- Tokens x states

    // dC of 64 states, and C_i . (exp(G) dY S)_i.
    __device__ __forceinline__ void read_states(const RowTileAt& at, TileSums& to) {
        const auto& [S, C] = current();
        TileSums sums;
        clear(sums);
        this->add(sums, rows_of(at).dy, S);
        const ChunkSteps& steps = steps_of(at);
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const float before = exp2_fast(steps.gate[row(2 * which)]);
            float dot = 0.f;
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const float x = before == 0.f ? 0.f : before * sums[n][2 * which],
                            y = before == 0.f ? 0.f : before * sums[n][2 * which + 1];
                const float2 own = this->pair_at(C, n, which);
                dot = fmaf(own.x, x, fmaf(own.y, y, dot));
                to[n][2 * which] += x, to[n][2 * which + 1] += y;
            }
            read[which] += dot;
        }
        for (int i = 0; i < 2; ++i) own_states[i] = slice(S, i);
    }
    __device__ __forceinline__ uint4 slice(const Tile& tile, int i) const {
        return load_shared(shared_address(tile.bytes) + 16 * (thread + i * SsdBackwardMmaConfig::threads()));
    }
    // exp(G_end - G) of the thread's rows.
    __device__ __forceinline__ float after(const ChunkSteps& steps, int which) const {
        return exp2_fast(steps.gate[kChunk - 1] - steps.gate[row(2 * which)]);
    }
    // dB and dW of 64 states, and <E, S>.
    __device__ __forceinline__ void write_states(const RowTileAt& at, TileSums& to) {
        const auto& [E, B] = current();
        this->template add_by_rows<false>(dW, B, E);
        TileSums sums;
        clear(sums);
        this->add(sums, rows_of(at).x, E);
        const ChunkSteps& steps = steps_of(at);
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const float factor = after(steps, which) * steps.delta[row(2 * which)];
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int i = 2 * which; i < 2 * which + 2; ++i) to[n][i] += factor == 0.f ? 0.f : factor * sums[n][i];
        }
        for (int i = 0; i < 2; ++i) {
            const uint4 other = slice(E, i);
            const unsigned left[4] = {own_states[i].x, own_states[i].y, own_states[i].z, own_states[i].w},
                           right[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float2 a = unpack<kIo>(left[k]), b = unpack<kIo>(right[k]);
                states = fmaf(a.x, b.x, fmaf(a.y, b.y, states));
            }
        }
    }

    // ---- Tokens x channels

    // The sum over the warp's channels of x dW, for each of the thread's tokens.
    __device__ __forceinline__ void multiply_rows(float (&sums)[2], const Tile& x) const {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            sums[which] = 0.f;
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const float2 own = this->pair_at(x, n, which);
                sums[which] = fmaf(own.x, dW[n][2 * which], fmaf(own.y, dW[n][2 * which + 1], sums[which]));
            }
        }
    }
    // dX, from what the states after gave to dW, and a row tile's sums.
    __device__ __forceinline__ void finish_row_tile(const RowTileAt& at) {
        this->refresh();
        const auto& [x, dy] = rows_of(at);
        const ChunkSteps& steps = steps_of(at);
        auto& sums = shared.sums;
        const bool begins = at.row == 0;
        add_row_sums(sums.read[half()], read, begins);
        add_warp_sum(sums.states, states, begins);
        const float factors[2] = {after(steps, 0), after(steps, 1)};
#pragma unroll
        for (int which = 0; which < 2; ++which)
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int i = 2 * which; i < 2 * which + 2; ++i)
                    dW[n][i] = factors[which] == 0.f ? 0.f : factors[which] * dW[n][i];
        const float delta[2] = {steps.delta[row(0)], steps.delta[row(2)]};
        float found[2];
        multiply_rows(found, x);
        for (int which = 0; which < 2; ++which) found[which] = factors[which] == 0.f ? 0.f : found[which] * delta[which];
        add_row_sums(sums.written[half()], found, begins);
        this->add_transposed(dW, shared.scores, dy);
        multiply_rows(found, x);
        add_row_sums(sums.scaled[half()], found, begins);
        const int head = at.head, first = at.row;
        const float D = args.D.values.data == nullptr ? 0.f : load_float(args.D.values, head * args.D.head);
        const i64 stride = static_cast<i64>(args.heads) * args.channels;
        Io* const to =
            static_cast<Io*>(args.dx) + first_token(args, work) * stride + static_cast<i64>(head) * args.channels + first;
        float by_D = 0.f;
#pragma unroll
        for (int which = 0; which < 2; ++which)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const float2 own = this->pair_at(x, n, which), slope = this->pair_at(dy, n, which);
                by_D = fmaf(own.x, slope.x, fmaf(own.y, slope.y, by_D));
                dW[n][2 * which] = fmaf(delta[which], dW[n][2 * which], D * slope.x);
                dW[n][2 * which + 1] = fmaf(delta[which], dW[n][2 * which + 1], D * slope.y);
            }
        add_warp_sum(sums.D, by_D, begins);
        store_rows(to, stride, dW, args.channels - first);
    }
    // Tokens x `columns` that exist.
    __device__ __forceinline__ void store_rows(Io* to, i64 stride, const TileSums& x, int columns) const {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const int at = row(2 * which);
            if (at >= work.count) break;
#pragma unroll
            for (int n = 0; n < 4; ++n)
                if (const int from = column(n, 0); from < columns)
                    *reinterpret_cast<unsigned*>(to + at * stride + from) = pack<kIo>(x[n][2 * which], x[n][2 * which + 1]);
        }
    }
    // After a barrier: the gradients of dt of a head whose last row tile this was. By a warp without scores.
    __device__ __forceinline__ void finish_head(const RowTileAt& at) const {
        if (warp != SsdBackwardMmaConfig::kWarps - 1 || at.row + kTileRows < args.channels) return;
        const auto& sums = shared.sums;
        const ChunkSteps& steps = steps_of(at);
        HeadSums found{};
        const auto add = [&](float2& to, const float(&from)[kChunk]) {
            const float2 more = gdn_cuda::pair_at(&from[2 * lane]);
            to.x += more.x, to.y += more.y;
        };
        for (int i = 0; i < Plan::kHalves; ++i) {
            add(found.read, sums.read[i]);
            add(found.written, sums.written[i]);
            add(found.scaled, sums.scaled[i]);
        }
        for (const auto& each : shared.across[at.head % 2]) add(found.across, each);
        for (const float each : sums.states) found.states += each;
        for (const float each : sums.D) found.D += each;
        store_step_gradients(args, work, at.head, {args, work, at.head, lane}, found, gdn_cuda::pair_at(&steps.delta[2 * lane]),
                             exp2_fast(steps.gate[kChunk - 1]), lane);
    }

    // ---- The group's row tiles

    __device__ __forceinline__ void run_row_tile(const RowTileAt& at, const RowTileAt& before) {
        clear(dW);
        read[0] = read[1] = states = 0.f;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            this->begin([&](Plan::Stage& to) { this->load_step(to, at, 2 * block + 2); });
            if (block == 0) {
                if (at.tile > 0) finish_head(before);
                form_scores(at);
                this->refresh();
            }
            read_states(at, dC[block]);
            this->begin([&](Plan::Stage& to) { this->load_step(to, at, 2 * block + 3); });
            write_states(at, dB[block]);
        }
        finish_row_tile(at);
    }
    __device__ __forceinline__ void multiply_tokens(const RowTileAt& first) {
        clear(CB);
#pragma unroll 1
        for (int block = 0; block < kBlocks; ++block) {
            this->begin([&](Plan::Stage& to) { this->load_before(to, first, block + 2); });
            this->add_by_rows(CB, current().first, current().tokens);
        }
    }
    __device__ __forceinline__ void store_group_gradient(void* to, const TileSums& x, int block) const {
        const i64 stride = static_cast<i64>(args.groups) * args.state_count;
        const int first = block * kMmaTileElements;
        store_rows(static_cast<Io*>(to) + first_token(args, work) * stride + work.group * args.state_count + first, stride, x,
                   args.state_count - first);
    }
    // dC += N B, dB += N^T C.
    __device__ __forceinline__ void finish_group(const RowTileAt& last) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            this->begin([&](Plan::Stage& to) {
                if (block + 2 < kBlocks) this->load_group(to, block + 2);
            });
            if (block == 0) {
                finish_head(last);
                store_N();
                __syncthreads();
            }
            const auto& [C, B] = current();
            this->template add<true>(dC[block], shared.scores, B);
            store_group_gradient(args.dC, dC[block], block);
            this->add_transposed(dB[block], shared.scores, C);
            store_group_gradient(args.dB, dB[block], block);
        }
    }
    __device__ __forceinline__ void store_N() const {
        if (!is_below()) return;
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int which = 0; which < 2; ++which)
                store_shared(this->word_at(shared.scores, n, which), pack<kIo>(N[n][2 * which], N[n][2 * which + 1]));
    }
    __device__ __forceinline__ void run() {
        for (int block = 0; block < kBlocks; ++block) clear(dC[block]), clear(dB[block]);
        clear(N);
        if (thread == 0) this->find_sources();
        __syncthreads();
        RowTileAt at{.tile = 0, .head = work.group * (args.heads / args.groups), .row = 0}, before = at;
        for (int step = 0; step < 2; ++step) {
            this->load_before(shared.stages[step], at, step);
            cp_async_fence();
        }
        multiply_tokens(at);
#pragma unroll 1
        while (at.tile < work.tiles) {
            run_row_tile(at, before);
            before = at, at = this->next(at);
        }
        finish_group(before);
    }
};

}  // namespace gdn_cuda::ssd
