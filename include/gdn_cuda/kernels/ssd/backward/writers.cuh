// The writers role: tokens j, whose x and B enter the state after the chunk and the outputs of the tokens after.
//
//     dW = M'^T dY + exp(G_end - G) B E^T        dX = δ dW + D dY        dB = N^T C + Σ δ exp(G_end - G) X E
#pragma once

#include <gdn_cuda/kernels/ssd/backward/work.cuh>

namespace gdn_cuda::ssd {

template <SsdBackwardConfig kConfig>
struct WritersRole : TokensRole<kConfig> {
    using Base = TokensRole<kConfig>;
    using Base::shared, Base::args, Base::work, Base::warp, Base::lane, Base::token;
    using typename Base::Operand;
    static constexpr int kStages = Base::kStages;
    static constexpr DType kIo = Base::kIo;

    using Base::Base;

    // dX of a row tile, from dW, through the warp's rows of x.
    __device__ __forceinline__ void store_dx(const float (&dW)[32], const Operand& dy, const float (&delta)[2], float D,
                                             int tile, SwizzledTile& staged) const {
        Operand dx;
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 v = unpack<kIo>(dy[step][i]);
                const float a = dW[8 * step + 2 * i], b = dW[8 * step + 2 * i + 1];
                dx[step][i] = pack<kIo>(fmaf(a, delta[i % 2], D * v.x), fmaf(b, delta[i % 2], D * v.y));
            }
        this->store_operand(staged, dx);
        __syncwarp();
        const int head = head_of(args, work, tile), channel = row_of(args, work, tile);
        const i64 stride = static_cast<i64>(args.heads) * args.channels;
        Storage<kIo>* const to = static_cast<Storage<kIo>*>(args.dx) + first_token(args, work) * stride +
                                 static_cast<i64>(head) * args.channels + channel;
        const int vector = lane % 8;
        const bool exists = channel + 8 * vector < args.channels;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (const int row = 16 * warp + 4 * i + lane / 8; exists && row < work.count)
                *reinterpret_cast<uint4*>(to + row * stride + 8 * vector) =
                    load_shared(row_vector(tile_row(staged.bytes, row), vector));
    }
    __device__ __forceinline__ float product_sum(const Operand& x, const Operand& y) const {
        float sum = 0.f;
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 a = unpack<kIo>(x[step][i]), b = unpack<kIo>(y[step][i]);
                sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
            }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        return sum;
    }
    __device__ __forceinline__ void run() {
        float dB[Base::kStateElements];
        clear_fragment(dB);
        barrier(shared.group_full).wait(0);
#pragma unroll 1
        for (int tile = 0; tile < work.tiles; ++tile) {
            this->find_lane();
            const PipelineStage<kStages> at(tile);
            auto& stage = shared.stages[at.index];
            const auto& factors = shared.factors[at.index];
            auto& sums = shared.sums[at.index];
            barrier(shared.stage_full[at.index]).wait(at.parity);
            barrier(shared.factors_full[at.index]).wait(at.parity);
            float dW[32];
            start_row_products<kIo, kConfig.states>(dW, shared.B, stage.gradients);
            Operand x, dy;
            this->load_rows(x, stage.x);
            this->load_rows(dy, stage.dy);
            wait_for_product(dW);
            const float after[2] = {factors.after[token()], factors.after[token() + 8]};
            const float delta[2] = {factors.delta[token()], factors.delta[token() + 8]};
#pragma unroll
            for (int i = 0; i < 32; ++i) dW[i] = after[i / 2 % 2] == 0.f ? 0.f : dW[i] * after[i / 2 % 2];
            barrier(shared.sums_empty[at.index]).wait(at.parity ^ 1);
            float b[2];
            Base::row_sums(b, x, dW);
            for (int half = 0; half < 2; ++half) b[half] *= delta[half];
            this->store_row_sums(sums.written, b);
            barrier(shared.scores_full[at.index]).wait(at.parity);
            start_tile_product<TileProduct::transposed, kIo>(dW, shared.scores[at.index], stage.dy);
            wait_for_product(dW);
            float r[2];
            Base::row_sums(r, x, dW);
            this->store_row_sums(sums.scaled, r);
            const float D = product_sum(x, dy);
            if (lane == 0) sums.D[warp] = D;
            store_dx(dW, dy, delta, factors.D, tile, stage.x);
            const float factor[2] = {after[0] * delta[0], after[1] * delta[1]};
            Base::scale_rows(x, x, factor);
            Base::start_into_states(dB, x, stage.gradients);
            wait_for_product(dB);
            cutlass::arch::fence_view_async_shared();  // dX, before x is loaded again
            this->finish_tile(at.index);
        }
        NamedBarrier::sync(2 * kWarpgroup, 0);
        NamedBarrier::sync(2 * kWarpgroup, 0);  // N is there
#pragma unroll
        for (int part = 0; part < kConfig.state_tiles(); ++part) {
            auto& columns = reinterpret_cast<float(&)[32]>(dB[32 * part]);
            start_tile_product<TileProduct::transposed, kIo>(columns, shared.scores[0], shared.C[part]);
            wait_for_product(columns);
        }
        this->store_group_gradient(dB, args.dB);
    }
};

}  // namespace gdn_cuda::ssd
