// A thread of gdn/kda_gradients: two channels of the key and the tokens of an eighth of the chunk.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/within.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/gates.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/loads.cuh>

namespace gdn_cuda::gdn {

template <DType kIo>
struct KdaEighth {
    static constexpr int kTokens = KdaGradientsConfig::kTokens, kEighths = KdaGradientsPlan::kEighths;
    using Pairs = float2[kTokens];

    KdaGradientsPlan& shared;
    const KdaGradientsCall& args;
    int eighth;
    int own;                    // the first channel, in the block
    KdaChannel x;               // only decays, of token i at 2 i and 2 i + 1; the first channel
    unsigned element, column;   // bytes from tiles, and from products, to the thread's first token
    unsigned queries[kTokens];  // both channels
    unsigned keys[kTokens];

    __device__ __forceinline__ KdaEighth(KdaGradientsPlan& shared, const KdaGradientsCall& args)
        : shared(shared), args(args), x(args.call, 0) {
        find_place();
    }
    // Anew where registers are short.
    __device__ __forceinline__ void find_place() {
        const auto thread = opaque(static_cast<unsigned>(threadIdx.x)), channel = thread % 32 * 2;
        eighth = __shfl_sync(0xffffffffu, static_cast<int>(thread / 32), 0);  // warp-uniform for the compiler
        own = static_cast<int>(channel);
        x.channel = kda_gradients_place(shared.place, call()).channel() + own;
        x.exists = x.channel < call().dk;
        // Opaque: otherwise computed anew at each use.
        element = opaque(first() * 128 + channel * 2);
        column = opaque(KdaChannelProducts::at(first(), channel));
    }

    __device__ __forceinline__ const GdnCall& call() const { return args.call; }
    __device__ __forceinline__ int head() const { return static_cast<int>(blockIdx.y); }
    __device__ __forceinline__ int first() const { return kTokens * eighth; }
    // 0 where the channels do not exist.
    __device__ __forceinline__ int tokens() const { return x.exists ? max(0, min(kTokens, shared.place.tokens - first())) : 0; }
    __device__ __forceinline__ KdaGatePairs gates() const {
        const char* const chunk = static_cast<const char*>(call().gate.values.data) + shared.offsets.gates;
        return KdaGatePairs(call(), chunk + gate_bytes(first() * call().gate.token, call().gate.values.type), tokens(), head(),
                            own, x.channel);
    }
    __device__ __forceinline__ float2& product(int which, int i) const {
        return *reinterpret_cast<float2*>(shared.products.states[which].bytes +
                                          (column ^ KdaChannelProducts::at(i % 4, 0) % 256) + i * KdaChannelProducts::kRow);
    }
    __device__ __forceinline__ float2& gate(int i) const { return at(shared.products.gates[first() + i]); }
    // In shared memory, as slopes need them once more.
    __device__ __forceinline__ void keep_gates(const KdaGatePairs& gates) const {
        float each[2 * kTokens];
        gates.convert(each);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) gate(i) = {each[2 * i], each[2 * i + 1]};
        shared.rate_log[eighth] = gates.to_rate_log();
    }

    // ---- What crosses eighths

    __device__ __forceinline__ void find_decays() {
        float each[2 * kTokens];
        const KdaGatePairs gates = this->gates();
        gates.convert(each);
        x.find_decays(call(), each, 2 * tokens(), gates.to_rate_log());
        float2 product = decay(0);
#pragma unroll
        for (int i = 1; i < kTokens; ++i) product = times(product, decay(i));
        at(shared.whole[eighth]) = product;
    }
    // Keys and queries. Tokens past the end, which are others', become 0, and their products.
    __device__ __forceinline__ void load_rows() {
        barrier(shared.rows_full).wait(0);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            queries[i] = load_shared_word(word(shared.rows.query, i));
            keys[i] = load_shared_word(word(shared.rows.key, i));
        }
        const int tokens = shared.place.tokens - first();
        if (tokens >= kTokens) [[likely]]
            return;
#pragma unroll
        for (int i = 0; i < kTokens; ++i)
            if (i >= tokens) {
                queries[i] = keys[i] = 0;
                product(0, i) = product(1, i) = product(2, i) = {};
            }
    }
    // Operands of pairs, and sums for gates of other quarters.
    __device__ __forceinline__ void split() {
        const Factors key_norms(&shared.factors.key_norm[first()]), query_norms(&shared.factors.query_norm[first()]);
        float2 factor{1.f, 1.f}, sum{};
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            factor = times(factor, decay(i));
            const float2 query = times(factor, scaled(query_norms[i], queries[i])),
                         key = times(factor, scaled(key_norms[i], keys[i])), by_query = product(0, i), by_key = product(1, i);
            sum.x = fmaf(query.x, by_query.x, fmaf(-key.x, by_key.x, sum.x));
            sum.y = fmaf(query.y, by_query.y, fmaf(-key.y, by_key.y, sum.y));
            store_shared(word(shared.rows.query, i), pack<kIo>(query.x, query.y));
            store_shared(word(shared.rows.key, i), pack<kIo>(key.x, key.y));
        }
        if (eighth >= 2) {
#pragma unroll
            for (int i = 0; i < kEighths - 1; ++i)
                if (i < eighth) sum = times(sum, at(shared.whole[i]));
            at(shared.carried.earlier[eighth - 2]) = sum;
        }
        refresh_rows();
        factor = {1.f, 1.f}, sum = {};
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            const float2 key = times(factor, scaled(key_norms[i], keys[i])), to_key = product(2, i);
            sum = {fmaf(key.x, to_key.x, sum.x), fmaf(key.y, to_key.y, sum.y)};
            store_shared(word(shared.products.earlier_key, i), pack<kIo>(key.x, key.y));
            factor = times(factor, decay(i));
        }
        if (eighth < kEighths - 2) {
#pragma unroll
            for (int i = 1; i < kEighths; ++i)
                if (i > eighth) sum = times(sum, at(shared.whole[i]));
            at(shared.carried.later[eighth]) = sum;
        }
    }
    // What rounding has left of the keys of earlier tokens, in their place.
    __device__ __forceinline__ void store_key_residuals() {
        refresh_rows();
        float2 factor{1.f, 1.f};
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            const unsigned to = word(shared.products.earlier_key, i);
            const float2 key = times(factor, scaled(shared.factors.key_norm[first() + i], keys[i]));
            store_shared(to, pack_residual<kIo>(key.x, key.y, load_shared_word(to)));
            factor = times(factor, decay(i));
        }
    }

    // ---- Gradients

    __device__ __forceinline__ void finish() {
        find_place();
        refresh_rows();
        Pairs query, key;  // gradients
        find_outer(query, key);
        forget_memory();
        add_inner<0>(query, key);
        add_inner<1>(query, key);
        find_place();
        store_gate_gradients();
        find_place();
        if (KdaGradientsConfig::blocks(call().dk) > 1) cute::cluster_wait();  // the other block has read dV, and takes dots
        if (call().qk_norm) pass_norms(query, key);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            store_shared(word(shared.rows.query, i), pack<kIo>(query[i].x, query[i].y));
            store_shared(word(shared.rows.key, i), pack<kIo>(key[i].x, key[i].y));
        }
    }

  private:
    __device__ __forceinline__ float2& at(float* channels) const { return *reinterpret_cast<float2*>(channels + own); }
    __device__ __forceinline__ float2 decay(int i) const { return {x.decay[2 * i], x.decay[2 * i + 1]}; }
    // The address of the thread's elements of its token i.
    __device__ __forceinline__ unsigned word(const SwizzledTile& tile, int i) const {
        return shared_address(tile.bytes) + (element ^ i << 4) + i * 128;
    }
    __device__ __forceinline__ static float2 scaled(float norm, unsigned pair) {
        const float2 both = unpack<kIo>(pair);
        return {norm * both.x, norm * both.y};
    }
    __device__ __forceinline__ static void add(float2& sum, float2 x) { sum = {sum.x + x.x, sum.y + x.y}; }
    // Before they are used anew: otherwise the compiler would keep them converted, which is two registers each, and spill.
    __device__ __forceinline__ void refresh_rows() {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            queries[i] = opaque(queries[i]);
            keys[i] = opaque(keys[i]);
        }
    }
    // The same factor of the eighth's tokens, four at a time.
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
    // What is from outside the eighth. Gradients of decays come in place of a product, where registers are short.
    __device__ __forceinline__ void find_outer(Pairs& query, Pairs& key) {
        const Factors key_norms(&shared.factors.key_norm[first()]), query_norms(&shared.factors.query_norm[first()]);
        Pairs gate, terms;
        float2 factor{1.f, 1.f};
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            factor = times(factor, decay(i));
            const float2 q = scaled(query_norms[i], opaque(queries[i])), k = scaled(key_norms[i], opaque(keys[i]));
            query[i] = times(factor, product(0, i));
            key[i] = times(factor, product(1, i));
            terms[i] = {fmaf(q.x, query[i].x, k.x * key[i].x), fmaf(q.y, query[i].y, k.y * key[i].y)};
        }
        float2 later = after();
        factor = {1.f, 1.f};
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            add(later, terms[i]);
            gate[i] = later;
            const float2 to_key = times(factor, product(2, i));
            add(key[i], to_key);
            terms[i] = times(scaled(key_norms[i], opaque(keys[i])), to_key);
            factor = times(factor, decay(i));
        }
        find_place();  // a register less
        float2 earlier = before();
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            product(0, i) = {gate[i].x + earlier.x, gate[i].y + earlier.y};
            add(earlier, terms[i]);
        }
    }
    // Pairs within the eighth, in fp32, of one of the channels; those of decays in place of another product.
    template <int kWhich>
    __device__ __forceinline__ void add_inner(Pairs& query, Pairs& key) const {
        constexpr int kHalf = kTokens / 2;
        const auto of = [](auto& pair) -> auto& { return kWhich == 0 ? pair.x : pair.y; };
        const Factors key_norms(&shared.factors.key_norm[first()]), query_norms(&shared.factors.query_norm[first()]);
        const KdaEighthGradients& pairs = shared.blocks[eighth];
        struct {
            float query[kTokens], key[kTokens], decay[kTokens];
        } channel;
        KdaPairSums<kTokens> sums;
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            float2 q = scaled(query_norms[i], opaque(queries[i])), k = scaled(key_norms[i], opaque(keys[i]));
            channel.query[i] = of(q);
            channel.key[i] = of(k);
            channel.decay[i] = x.decay[2 * i + kWhich];
            const float own = pairs.at[i][i].query;
            sums.query[i] = fmaf(own, channel.key[i], of(query[i]));
            sums.key[i] = fmaf(own, channel.query[i], of(key[i]));
        }
        sums.template add_halves<kHalf, true, false>(channel, pairs, 0);
        sums.template add_group<kHalf / 2>(channel, pairs, 0);
        sums.template add_group<kHalf / 2>(channel, pairs, kHalf);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            of(query[i]) = sums.query[i];
            of(key[i]) = sums.key[i];
            of(product(1, i)) = sums.decay[i];
        }
    }

    // Terms of the eighth's gates that other eighths' tokens have.
    __device__ __forceinline__ float2 after() const {
        auto& carried = shared.carried;
        float2 sum{};
        if (eighth % 2 == 0) sum = at(carried.over_lower[eighth / 2]);
        if (eighth / 2 == 2) add(sum, at(carried.over_third));
#pragma unroll
        for (int i = 2; i < kEighths; ++i)
            if (eighth < 4 && i / 2 > eighth / 2) add(sum, at(carried.earlier[i - 2]));
        return sum;
    }
    __device__ __forceinline__ float2 before() const {
        auto& carried = shared.carried;
        const float2 decay = pair_at(&shared.factors.decay[x.channel]), state = at(shared.state_product);
        float2 sum{decay.x == 0.f ? 0.f : decay.x * state.x, decay.y == 0.f ? 0.f : decay.y * state.y};
        if (eighth % 2 == 1) add(sum, at(carried.over_upper[eighth / 2]));
        if (eighth / 2 == 1) add(sum, at(carried.over_second));
#pragma unroll
        for (int i = 0; i < kEighths - 2; ++i)
            if (eighth >= 4 && i / 2 < eighth / 2) add(sum, at(carried.later[i]));
        return sum;
    }
    __device__ __forceinline__ void store_gate_gradients() const {
        if (!x.exists || args.gate_gradient.data == nullptr) return;
        const i64 step = args.scalars_token * call().dk;
        const DType type = args.gate_gradient.type;
        const KdaGatePairSums sums = store_kda_gate_pairs(
            call(), shared.rate_log[eighth], tokens(),
            static_cast<char*>(const_cast<void*>(args.gate_gradient.data)) + shared.offsets.gate_gradient +
                gate_bytes(first() * step + own, type),
            type, step,
            [&](int first, int i) {
                const auto at = [&](int which) {
                    return *reinterpret_cast<const float2*>(reinterpret_cast<const char*>(&product(which, i)) +
                                                            first * KdaChannelProducts::kRow);
                };
                const float2 outer = at(0), inner = at(1);
                return float2{outer.x + inner.x, outer.y + inner.y};
            },
            [&](int first, int i) { return gate(first + i); });
        gate(0) = sums.A_log;
        gate(1) = sums.dt_bias;
    }
    // x / |x| has the gradient (dx - x (x.dx)) / |x|, x and dx those of the normalised row.
    __device__ __forceinline__ void pass_norms(Pairs& query, Pairs& key) const {
        float products[2 * kTokens];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            const float2 q = unpack<kIo>(opaque(queries[i])), k = unpack<kIo>(opaque(keys[i]));
            products[i] = fmaf(q.x, query[i].x, q.y * query[i].y);
            products[kTokens + i] = fmaf(k.x, key[i].x, k.y * key[i].y);
        }
        float sum = transposed_sum<kTokens>(products);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2 * kTokens);
        const int lane = own / 2;
        auto& dots = shared.dots[eighth];
        if (lane < 2 * kTokens) {  // x, the element times the norm, twice
            const auto& norms = lane < kTokens ? shared.factors.query_norm : shared.factors.key_norm;
            const float norm = norms[first() + lane % kTokens];
            dots[lane] = norm * norm * (sum + other_dot(lane, sum));
        }
        __syncwarp();
        const Factors key_norms(&shared.factors.key_norm[first()]), query_norms(&shared.factors.query_norm[first()]);
        const Factors query_dots(dots), key_dots(dots + kTokens);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            const float2 q = unpack<kIo>(opaque(queries[i])), k = unpack<kIo>(opaque(keys[i]));
            query[i] = {query_norms[i] * (query[i].x - q.x * query_dots[i]),
                        query_norms[i] * (query[i].y - q.y * query_dots[i])};
            key[i] = {key_norms[i] * (key[i].x - k.x * key_dots[i]), key_norms[i] * (key[i].y - k.y * key_dots[i])};
        }
    }
    // A sum over the other block's channels, in exchange for that over this one's.
    __device__ __forceinline__ float other_dot(int which, float sum) const {
        if (KdaGradientsConfig::blocks(call().dk) == 1) return 0.f;
        Barrier& full = barrier(shared.dots_full[eighth]);
        cute::store_shared_remote(__float_as_uint(sum), shared_address(&shared.other_dots[eighth][which]),
                                  shared_address(&shared.dots_full[eighth]), cute::block_rank_in_cluster() ^ 1);
        full.wait(0);
        return shared.other_dots[eighth][which];
    }
};

}  // namespace gdn_cuda::gdn
