// A thread of gdn/kda_gradients: a channel of the key and the 16 tokens of a quarter of the chunk.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/results.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/loads.cuh>

namespace gdn_cuda::gdn {

template <DType kIo>
struct KdaQuarter {
    static constexpr int kTokens = kKdaTokens, kHalf = kTokens / 2, kQuarters = KdaGradientsPlan::kQuarters;

    KdaGradientsPlan& shared;
    const KdaGradientsCall& args;
    int quarter;
    int own;  // the channel, in the block
    KdaChannel x;
    unsigned element, column;  // bytes from tiles, and from products, to the thread's first token
    unsigned raw[kTokens];     // elements of queries and keys
    bool is_slow;              // whether all decays of the warp's tokens and channels are

    __device__ __forceinline__ KdaQuarter(KdaGradientsPlan& shared, const KdaGradientsCall& args)
        : shared(shared), args(args), x(args.call, 0) {
        find_place();
    }
    // Anew where registers are short.
    __device__ __forceinline__ void find_place() {
        constexpr unsigned kChannels = KdaGradientsPlan::kChannels;
        const auto thread = opaque(static_cast<unsigned>(threadIdx.x)), channel = thread % kChannels;
        quarter = __shfl_sync(0xffffffffu, static_cast<int>(thread / kChannels), 0);  // warp-uniform for the compiler
        own = static_cast<int>(channel);
        x.channel = kda_gradients_place(shared.place, call()).channel() + own;
        x.exists = x.channel < call().dk;
        // Opaque: otherwise computed anew at each use.
        element = opaque(first() * 128 + channel * 2);
        column = opaque(KdaChannelProducts::at(first(), channel));
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
        return *reinterpret_cast<float*>(shared.products.states[which].bytes +
                                         (column ^ KdaChannelProducts::at(i % 4, 0) % 256) + i * KdaChannelProducts::kRow);
    }
    __device__ __forceinline__ float& gate(int i) const { return shared.products.kept.gates[first() + i][own]; }

    // ---- What crosses quarters

    __device__ __forceinline__ void find_decays() {
        float each[kTokens];
        gates().convert(each);
        x.find_decays(call(), each, x.tokens_of(place()), head());
        float halves[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            halves[half] = x.decay[kHalf * half];
#pragma unroll
            for (int i = 1; i < kHalf; ++i) halves[half] *= x.decay[kHalf * half + i];
        }
        const bool allowed = kIo == DType::bf16 || call().qk_norm;  // longer keys may exceed fp16's range
        is_slow = __all_sync(0xffffffffu,
                             allowed && halves[0] >= KdaGradientsConfig::kSlow && halves[1] >= KdaGradientsConfig::kSlow);
        shared.before[quarter][own] = is_slow ? halves[0] : 1.f;
        shared.after[quarter][own] = is_slow ? halves[1] : 1.f;
        shared.whole[quarter][own] = is_slow ? 1.f : halves[0] * halves[1];
    }
    // Keys and queries. Tokens past the end, which are others', become 0, and their products.
    __device__ __forceinline__ void load_rows() {
        barrier(shared.rows_full).wait(0);
#pragma unroll
        for (int i = 0; i < kTokens; ++i)
            raw[i] = at(shared.rows.query, i) | static_cast<unsigned>(at(shared.rows.key, i)) << 16;
        const int tokens = shared.place.tokens - first();
        if (tokens >= kTokens) [[likely]]
            return;
#pragma unroll
        for (int i = 0; i < kTokens; ++i)
            if (i >= tokens) {
                raw[i] = 0;
                product(0, i) = product(1, i) = product(2, i) = 0.f;
            }
    }
    // Decays to and from the quarter's border, of what it has from the states; sums for gates of other quarters; and operands
    // of pairs.
    __device__ __forceinline__ void split() {
        float earlier = shared.before[quarter][own], later = shared.after[quarter][own];
#pragma unroll
        for (int i = 0; i < kQuarters; ++i) {
            const float total = shared.before[i][own] * shared.after[i][own] * shared.whole[i][own];
            if (i < quarter) earlier *= total;
            if (i > quarter) later *= total;
        }
        shared.earlier[quarter][own] = earlier;
        shared.later[quarter][own] = later;
        const Factors key_norms(&shared.factors.key_norm[first()]), query_norms(&shared.factors.query_norm[first()]);
        float factor = to_first(), sum = 0.f;
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            factor *= x.decay[i];
            const float2 both = unpack<kIo>(raw[i]);
            const float query = factor * (query_norms[i] * both.x), key = factor * (key_norms[i] * both.y);
            sum = fmaf(query, product(0, i), fmaf(-key, product(1, i), sum));
            const unsigned pair = pack<kIo>(query, key);
            at(shared.rows.query, i) = static_cast<unsigned short>(pair);
            at(shared.rows.key, i) = static_cast<unsigned short>(pair >> 16);
        }
        if (quarter > 0) shared.carried.earlier[quarter - 1][own] = earlier * sum;
        refresh_rows();
        factor = from_last(), sum = 0.f;
        float keys[kTokens];
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            keys[i] = factor * (key_norms[i] * unpack<kIo>(raw[i]).y);
            sum = fmaf(keys[i], product(2, i), sum);
            factor *= x.decay[i];
        }
#pragma unroll
        for (int i = 0; i < kTokens; i += 2) {
            const unsigned pair = pack<kIo>(keys[i], keys[i + 1]);
            at(shared.products.earlier_key, i) = static_cast<unsigned short>(pair);
            at(shared.products.earlier_key, i + 1) = static_cast<unsigned short>(pair >> 16);
        }
        if (quarter < kQuarters - 1) shared.carried.later[quarter][own] = later * sum;
    }
    // Before they are used anew: otherwise the compiler would keep them converted, which is two registers each, and spill.
    __device__ __forceinline__ void refresh_rows() {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) raw[i] = opaque(raw[i]);
    }
    // What rounding has left of the keys of earlier tokens, in their place.
    __device__ __forceinline__ void store_key_residuals() {
        refresh_rows();
        float factor = from_last();
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            auto& to = at(shared.products.earlier_key, i);
            const float key = factor * (shared.factors.key_norm[first() + i] * unpack<kIo>(raw[i]).y);
            to = rounded_bits(key - to_float(to, kIo), kIo);
            factor *= x.decay[i];
        }
    }

    // ---- Gradients

    __device__ __forceinline__ void finish() {
        find_place();
        KdaChannelGradients gradients;
        find_rows();
        if (is_slow)
            finish_slow(gradients);
        else
            finish_any(gradients);
        find_place();
        store_gate_gradients();
        find_place();
        if (KdaGradientsConfig::blocks(call().dk) > 1) cute::cluster_wait();  // the other block has read dV, and takes dots
        if (call().qk_norm)
            pass_kda_norms(
                x, gradients, shared.dots[quarter], &shared.factors.query_norm[first()], &shared.factors.key_norm[first()], own,
                [&] { NamedBarrier::sync(KdaGradientsPlan::kChannels, kWarpgroupBarrier + quarter); },
                [&](int which, float sum) { return sum + other_dot(which, sum); });
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            const unsigned pair = pack<kIo>(gradients.query[i], gradients.key[i]);
            at(shared.rows.query, i) = static_cast<unsigned short>(pair);
            at(shared.rows.key, i) = static_cast<unsigned short>(pair >> 16);
        }
    }

  private:
    // The decays from the quarter's border to before its first token, and from after its last token to the border.
    __device__ __forceinline__ float to_first() const { return reciprocal_fast(shared.before[quarter][own]); }
    __device__ __forceinline__ float from_last() const { return reciprocal_fast(shared.after[quarter][own]); }
    // All pairs within the quarter, in fp32; and what is from outside.
    __device__ __forceinline__ void finish_any(KdaChannelGradients& gradients) {
        const KdaTokenGradients& pairs = shared.blocks[quarter];
        const auto product = [this](int which, int i) -> float& { return this->product(which, i); };
        find_queries<kHalf>();
        gradients.start(x, pairs);
        find_place();
        forget_memory();
        const auto& kept = shared.products.kept.queries;
#pragma unroll
        for (int i = 0; i < kHalf / 2; ++i) raw[i] = kept[i][threadIdx.x];
        find_queries<0>();
        gradients.add_states(x, 1.f, after(), [&](float) { return before(); }, product, [](int) { return 1.f; });
        gradients.add_rest(x, pairs, product, [&](int i, float gradient) { product(0, i) = gradient; });
    }
    // The products have pairs within the quarter. A gate has those of its later tokens as rows, less those that are columns
    // too: in place of the latter all less those of its earlier tokens.
    __device__ __forceinline__ void finish_slow(KdaChannelGradients& gradients) {
        const KdaTokenGradients& pairs = shared.blocks[quarter];
        find_queries<0>();
        find_queries<kHalf>();
        float factor = to_first();
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            factor *= x.decay[i];
            gradients.query[i] = factor * product(0, i);
            gradients.key[i] = -factor * product(1, i);
            gradients.decay[i] = fmaf(x.query[i], gradients.query[i], x.key[i] * gradients.key[i]);
        }
        float later = after();
        factor = from_last();
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            gradients.decay[i] = later += gradients.decay[i];
            const float to_key = factor * product(2, i);
            gradients.key[i] += to_key;
            product(2, i) = x.key[i] * to_key;
            factor *= x.decay[i];
        }
        float earlier = before() - shared.within[quarter][own];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            product(0, i) = gradients.decay[i] + earlier;
            earlier += product(2, i);
            const float own = pairs.at[i][i].query;
            gradients.query[i] = fmaf(own, x.key[i], gradients.query[i]);
            gradients.key[i] = fmaf(own, x.query[i], gradients.key[i]);
        }
    }

    // The same factor of the quarter's tokens, four at a time.
    struct Factors {
        float4 fours[kTokens / 4];

        __device__ __forceinline__ explicit Factors(const float* from) {
#pragma unroll
            for (int i = 0; i < kTokens / 4; ++i) fours[i] = reinterpret_cast<const float4*>(from)[i];
        }
        __device__ __forceinline__ float operator[](int i) const {
            const float4& four = fours[i / 4];
            return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
        }
    };
    // The thread's element of its token i.
    __device__ __forceinline__ unsigned short& at(SwizzledTile& tile, int i) const {
        return *reinterpret_cast<unsigned short*>(tile.bytes + (element ^ i % 8 << 4) + i * 128);
    }
    // Keys; the queries stay packed.
    __device__ __forceinline__ void find_rows() {
        refresh_rows();
        const Factors norms(&shared.factors.key_norm[first()]);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) x.key[i] = norms[i] * unpack<kIo>(raw[i]).y;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) raw[i] = opaque(__byte_perm(raw[2 * i], raw[2 * i + 1], 0x5410));
#pragma unroll
        for (int i = 0; i < kHalf / 2; ++i) shared.products.kept.queries[i][threadIdx.x] = raw[i];
    }
    // Half of the tokens.
    template <int kFirst>
    __device__ __forceinline__ void find_queries() {
        const Factors norms(&shared.factors.query_norm[first()]);
#pragma unroll
        for (int i = kFirst; i < kFirst + kHalf; i += 2) {
            const float2 both = unpack<kIo>(opaque(raw[i / 2]));
            x.query[i] = norms[i] * both.x;
            x.query[i + 1] = norms[i + 1] * both.y;
        }
    }
    // A sum over the other block's channels, in exchange for that over this one's.
    __device__ __forceinline__ float other_dot(int which, float sum) const {
        if (KdaGradientsConfig::blocks(call().dk) == 1) return 0.f;
        Barrier& full = barrier(shared.dots_full[quarter]);
        cute::store_shared_remote(__float_as_uint(sum), shared_address(&shared.other_dots[quarter][which]),
                                  shared_address(&shared.dots_full[quarter]), cute::block_rank_in_cluster() ^ 1);
        full.wait(0);
        return shared.other_dots[quarter][which];
    }
    // Terms of the quarter's gates that other quarters' tokens have.
    __device__ __forceinline__ float after() const {
        const auto& carried = shared.carried;
        float sum = quarter == 2 ? carried.over_third[own] : 0.f;
#pragma unroll
        for (int i = 1; i < kQuarters; ++i)
            if (i > quarter) sum += carried.earlier[i - 1][own];
        return sum;
    }
    __device__ __forceinline__ float before() const {
        const auto& carried = shared.carried;
        const float decay = shared.factors.decay[x.channel];
        float sum = decay == 0.f ? 0.f : decay * shared.state_product[own];
        if (quarter == 1) sum += carried.over_second[own];
#pragma unroll
        for (int i = 0; i < kQuarters - 1; ++i)
            if (i < quarter) sum += carried.later[i][own];
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
