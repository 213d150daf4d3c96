// The gates role: a warp that adds a value head's sums to the gradients of its gates and betas.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_gradients/consumer.cuh>

namespace gdn_cuda::gdn {

template <HopperGradientsConfig kConfig>
struct GradientsGatesRole : GradientsConsumer<kConfig> {
    using Base = GradientsConsumer<kConfig>;
    using Base::shared, Base::args, Base::heads, Base::lane, Base::kKeyTiles;
    using typename Base::Plan, typename Base::Stage;

    using Base::Base;

    __device__ __forceinline__ void run_head(const GradientsWork& work, int head) {
        const Stage stage(heads);
        const auto& sums = shared.sums[stage.index];
        barrier(shared.sums_full[stage.index]).wait(stage.parity);
        const int count = work.count;
        const auto sum_of = [&](const float(&parts)[kKeyTiles][kChunk], int token) {
            float sum = parts[0][token];
            if (kKeyTiles > 1) sum += parts[kKeyTiles - 1][token];
            return token < count ? sum : 0.f;
        };
        float product = 0.f;
#pragma unroll
        for (const float each : sums.state_product) product += each;
        product *= exp2_fast(shared.scalars[stage.index].gate[kChunk - 1]);
        const i64 first = first_scalar(args.call, work, head);
        for_each_gate_gradient(
            lane, product, [&](int token) { return sum_of(sums.s, token); }, [&](int token) { return sum_of(sums.u, token); },
            [&](int token, float gradient) {
                if (token >= count) return;
                for (int warp = token / 16; warp < 4; ++warp) gradient += sums.within_chunk[warp][token];
                const i64 at = first + static_cast<i64>(token) * args.call.scalars_token;
                args.call.gate_gradient[at] = gradient;
                args.call.beta_gradient[at] = sums.beta_gradient[token];
            });
        this->arrive(shared.head_done[stage.index]);
    }
    __device__ __forceinline__ void run() {
        this->template for_each_item<false>([&](const GradientsWork& work, const typename Plan::Tokens&) {
            const int first = this->uniform(work.key_head) * args.call.heads_per_key;
#pragma unroll 1
            for (int i = 0; i < args.call.heads_per_key; ++i, ++heads) run_head(work, first + i);
        });
    }
};

}  // namespace gdn_cuda::gdn
