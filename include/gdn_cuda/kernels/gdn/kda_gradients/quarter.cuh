// A thread of gdn/kda_gradients: a channel of the key and the 16 tokens of a quarter of the chunk.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/results.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/plan.cuh>

namespace gdn_cuda::gdn {

template <DType kIo>
struct KdaQuarter {
    static constexpr int kTokens = kKdaTokens, kQuarters = KdaGradientsPlan::kQuarters;

    KdaGradientsPlan& shared;
    const KdaGradientsCall& args;
    int quarter;
    KdaChannel x;
    unsigned element, column;  // bytes from tiles, and from products, to the thread's first token

    __device__ __forceinline__ KdaQuarter(KdaGradientsPlan& shared, const KdaGradientsCall& args)
        : shared(shared),
          args(args),
          quarter(__shfl_sync(0xffffffffu, opaque(static_cast<int>(threadIdx.x)) / kKdaHeadK, 0)),
          x(args.call, opaque(static_cast<int>(threadIdx.x)) % kKdaHeadK) {
        const auto channel = static_cast<unsigned>(x.channel);
        // Opaque: otherwise computed anew at each use.
        element = opaque(channel / kTileElements * static_cast<unsigned>(sizeof(SwizzledTile)) + first() * 128 +
                         channel % kTileElements * 2);
        column = opaque(first() * static_cast<unsigned>(sizeof(KdaChannelProducts::values[0])) + channel * 4);
    }

    __device__ __forceinline__ const GdnCall& call() const { return args.call; }
    __device__ __forceinline__ int head() const { return static_cast<int>(blockIdx.y); }
    __device__ __forceinline__ int first() const { return kTokens * quarter; }
    __device__ __forceinline__ KdaPlace place() const {
        const KdaPlace chunk = shared.place;
        return {
            .sequence = chunk.sequence, .first = chunk.first + first(), .tokens = max(0, min(kTokens, chunk.tokens - first()))};
    }
    __device__ __forceinline__ KdaGates gates() const {
        const KdaPlace own = place();
        return KdaGates(call(), own, x.tokens_of(own), head(), x.channel);
    }
    __device__ __forceinline__ float& product(int which, int i) const {
        return *reinterpret_cast<float*>(reinterpret_cast<char*>(shared.products.states[which].values[i]) + column);
    }

    // ---- What crosses quarters

    __device__ __forceinline__ void find_decays() {
        float each[kTokens];
        gates().convert(each);
        x.find_decays(call(), each, x.tokens_of(place()), head());
        float total = x.decay[0];
#pragma unroll
        for (int i = 1; i < kTokens; ++i) total *= x.decay[i];
        shared.totals[quarter][x.channel] = total;
    }
    // Tokens past the end, which are others', become 0.
    __device__ __forceinline__ void clear_tail() const {
        const int tokens = shared.place.tokens - first();
        if (tokens >= kTokens) [[likely]]
            return;
#pragma unroll
        for (int i = 0; i < kTokens; ++i)
            if (i >= tokens) at(shared.key, i) = at(shared.query, i) = 0;
    }
    // Puts what the quarter has from the states in place of the products, but for the decays within the quarter, sums for gates
    // of other quarters, and operands of pairs of tokens of different quarters.
    __device__ __forceinline__ void split() {
        const float between = quarter == 3 ? total(2) : quarter == 0 ? total(1) : 1.f;
        auto& operands = shared.operands;
        const bool is_odd = quarter % 2 == 1, is_upper = quarter >= 2;
        float earlier = 1.f, later = 1.f;
#pragma unroll
        for (int i = 0; i < kQuarters; ++i) {
            if (i < quarter) earlier *= total(i);
            if (i > quarter) later *= total(i);
        }
        const float query_earlier = call().scale * earlier;
        const unsigned near_query = element - (quarter == 3 ? (kChunk - kTokens) * 128 : 0);
        float factor = 1.f, sum = 0.f;
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            factor *= x.decay[i];
            const float query = factor * query_at(i), key = factor * key_at(i);
            const float to_query = query_earlier * product(0, i), to_key = earlier * product(1, i);
            product(0, i) = to_query;
            product(1, i) = to_key;
            sum = fmaf(query, to_query, fmaf(-key, to_key, sum));
            if (is_odd) {
                const unsigned pair = pack<kIo>(query, key);
                at(operands.query, i, near_query) = static_cast<unsigned short>(pair);
                at(operands.near_key, i) = static_cast<unsigned short>(pair >> 16);
            }
            if (is_upper) {
                const unsigned pair = pack<kIo>(between * query, between * key);
                at(operands.query, i) = static_cast<unsigned short>(pair);
                at(operands.far_key, i) = static_cast<unsigned short>(pair >> 16);
            }
        }
        shared.carried.earlier[quarter][x.channel] = sum;
        factor = 1.f, sum = 0.f;
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            const float key = factor * key_at(i), to_key = later * shared.factors.beta[first() + i] * product(2, i);
            product(2, i) = to_key;
            sum = fmaf(key, to_key, sum);
            const unsigned pair = pack<kIo>(key, between * key);
            if (!is_odd) at(operands.near_key, i) = static_cast<unsigned short>(pair);
            if (!is_upper) at(operands.far_key, i) = static_cast<unsigned short>(pair >> 16);
            factor *= x.decay[i];
        }
        shared.carried.later[quarter][x.channel] = sum;
    }

    // ---- Gradients

    // state_product: of S E, summed over the values.
    __device__ __forceinline__ void finish(float state_product) {
        const KdaTokenGradients& pairs = shared.blocks[quarter];
        const auto product = [this](int which, int i) -> float& { return this->product(which, i); };
        constexpr int kHalf = kTokens / 2;
        load<0>(x.key, shared.key, shared.factors.key_norm);
        load<kHalf>(x.key, shared.key, shared.factors.key_norm);
        load<kHalf>(x.query, shared.query, shared.factors.query_norm);
        KdaChannelGradients gradients;
        gradients.start(x, pairs);
        load<0>(x.query, shared.query, shared.factors.query_norm);
        gradients.add_states(x, 1.f, after(), [&](float) { return before(state_product); }, product, [](int) { return 1.f; });
        gradients.add_rest(x, pairs, product, [&](int i, float gradient) { product(0, i) = gradient; });
        store_gate_gradients();
        if (call().qk_norm)
            pass_kda_norms(x, gradients, shared.dots[quarter], &shared.factors.query_norm[first()],
                           &shared.factors.key_norm[first()], x.channel,
                           [&] { NamedBarrier::sync(kWarpgroup, kWarpgroupBarrier + quarter); });
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            at(shared.query, i) = rounded_bits(gradients.query[i], kIo);
            at(shared.key, i) = rounded_bits(gradients.key[i], kIo);
        }
    }
    __device__ __forceinline__ float& gate(int i) const { return shared.gates[first() + i][x.channel]; }

  private:
    __device__ __forceinline__ float total(int i) const { return shared.totals[i][x.channel]; }
    // The thread's element of its token i; `first`: bytes to that of token 0.
    __device__ __forceinline__ static unsigned short& at(SwizzledTile (&tiles)[kKdaTiles], int i, unsigned first) {
        return *reinterpret_cast<unsigned short*>(tiles[0].bytes + (first ^ i % 8 << 4) + i * 128);
    }
    __device__ __forceinline__ unsigned short& at(SwizzledTile (&tiles)[kKdaTiles], int i) const {
        return at(tiles, i, element);
    }
    __device__ __forceinline__ float key_at(int i) const {
        return shared.factors.key_norm[first() + i] * to_float(at(shared.key, i), kIo);
    }
    __device__ __forceinline__ float query_at(int i) const {
        return shared.factors.query_norm[first() + i] * to_float(at(shared.query, i), kIo);
    }
    // Half of the tokens.
    template <int kFirst>
    __device__ __forceinline__ void load(float (&to)[kTokens], SwizzledTile (&tiles)[kKdaTiles],
                                         const float (&norms)[kChunk]) const {
#pragma unroll
        for (int i = kFirst; i < kFirst + kTokens / 2; ++i) to[i] = norms[first() + i] * to_float(at(tiles, i), kIo);
    }
    // Terms of the quarter's gates that other quarters' tokens have.
    __device__ __forceinline__ float after() const {
        float sum = quarter == 2 ? shared.carried.far_upper[x.channel] : 0.f;
#pragma unroll
        for (int i = 1; i < kQuarters; ++i)
            if (i > quarter) sum += shared.carried.earlier[i][x.channel];
        return sum;
    }
    __device__ __forceinline__ float before(float state_product) const {
        const float decay = shared.factors.decay[x.channel];
        float sum = decay == 0.f ? 0.f : decay * state_product;
        if (quarter == 1) sum += shared.carried.far_lower[x.channel];
#pragma unroll
        for (int i = 0; i < kQuarters - 1; ++i)
            if (i < quarter) sum += shared.carried.later[i][x.channel];
        return sum;
    }
    __device__ __forceinline__ void store_gate_gradients() const {
        if (!x.exists || args.gate_gradient.data == nullptr) return;
        const KdaPlace own = place();
        const i64 at = own.sequence * args.scalars_sequence + own.first * args.scalars_token + head();
        const KdaGateSums sums = store_kda_gate_gradients(
            call(), x, head(), own.tokens, args.gate_gradient, at * call().dk + x.channel, args.scalars_token * call().dk,
            [&](int i) { return product(0, i); }, [&](int i) { return gate(i); });
        gate(0) = sums.A_log;
        gate(1) = sums.dt_bias;
    }
};

}  // namespace gdn_cuda::gdn
