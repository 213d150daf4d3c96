// gdn/decode_codes: gdn/decode for states of int8 codes with a scale for 32 columns, where arithmetic would bound it.
//
//     S <- exp(g) S        v' = beta (v - S k)        S <- S + v' k^T        o = scale S q
//
// A warp has 16 rows at a time, as rows of mma.sync's left operand; a lane has 8 codes of each group of 32 columns, of two
// rows. Codes are pairs of fp16, and S k and S q those of codes, a group's times its scale. The right operand's columns are the
// key and the query, each as a sum of two vectors of fp16, scaled so that the largest element is 1 to 2: no more is rounded
// than in fp32. The update takes two elements an instruction: values of a group are in a unit that makes all of them less than
// 256, so that fp16 rounds them to 2^-11, where a code's step is 2^-8 of the group's largest. Groups whose numbers leave the
// range of fp32 take multiply-adds in fp32.
//
// A warp copies its tiles by cp.async, all at once, and needs no barrier. New codes go back to shared memory, so that stores
// are 16 bytes of contiguous rows. Bound (suspected): instruction issue, 2 to 3 an element.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/gdn/decode_codes_plan.cuh>
#include <gdn_cuda/kernels/recurrence/code_pairs.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>

namespace gdn_cuda::gdn {

// A lane's columns of a token's key and query: 8 of every group.
template <DecodeCodesConfig kConfig>
struct CodesToken {
    using Io = Storage<kConfig.io>;
    static constexpr int kGroups = kConfig.groups(), kColumns = 8, kLanes = 4;
    static_assert(kColumns * kLanes == kCodeGroup);

    uint4 key[kGroups];
    uint4 right[kGroups];          // the query; then the lane's column of the right operand
    float key_scale, query_scale;  // norms, without the scales
    float query_key;               // of the vectors as given
    float key_inverse, query_inverse;

    __device__ __forceinline__ void load(const Io* keys, const Io* queries, int t) {
#pragma unroll
        for (int v = 0; v < kGroups; ++v) {
            key[v] = *reinterpret_cast<const uint4*>(keys + v * kCodeGroup + t * kColumns);
            right[v] = *reinterpret_cast<const uint4*>(queries + v * kCodeGroup + t * kColumns);
        }
    }
    __device__ __forceinline__ void finish(float scale, bool qk_norm, int g) {
        float key_most = 0.f, query_most = 0.f, key_square = 0.f, query_square = 0.f;
        query_key = 0.f;
        each_pair([&](float2 k, float2 q, unsigned&) {
            key_most = fmaxf(key_most, fmaxf(fabsf(k.x), fabsf(k.y)));
            query_most = fmaxf(query_most, fmaxf(fabsf(q.x), fabsf(q.y)));
            key_square = fmaf(k.x, k.x, fmaf(k.y, k.y, key_square));
            query_square = fmaf(q.x, q.x, fmaf(q.y, q.y, query_square));
            query_key = fmaf(q.x, k.x, fmaf(q.y, k.y, query_key));
        });
#pragma unroll
        for (int step = 1; step < kLanes; step *= 2) {
            key_most = fmaxf(key_most, __shfl_xor_sync(0xffffffffu, key_most, step));
            query_most = fmaxf(query_most, __shfl_xor_sync(0xffffffffu, query_most, step));
        }
        query_key = group_sum<kLanes>(query_key);
        key_scale = qk_norm ? rsqrtf(group_sum<kLanes>(key_square) + kNormEpsilon) : 1.f;
        query_scale = qk_norm ? scale * rsqrtf(group_sum<kLanes>(query_square) + kNormEpsilon) : scale;
        const UnitScale key_unit(key_most), query_unit(query_most);
        key_inverse = key_unit.inverse, query_inverse = query_unit.inverse;
        each_pair([&](float2 k, float2 q, unsigned& pair) {
            k = times(k, {key_unit.scale, key_unit.scale}), q = times(q, {query_unit.scale, query_unit.scale});
            const float2 x = g < 2 ? k : q;
            const unsigned near = pack<DType::f16>(x.x, x.y);
            pair = g >= 4 ? 0u : g % 2 == 0 ? near : pack_residual<DType::f16>(x.x, x.y, near);
        });
    }

  private:
    __device__ __forceinline__ void each_pair(const auto& act) {
#pragma unroll
        for (int v = 0; v < kGroups; ++v) {
            const unsigned* keys = &key[v].x;
            unsigned* others = &right[v].x;
#pragma unroll
            for (int i = 0; i < 4; ++i) act(unpack<kConfig.io>(keys[i]), unpack<kConfig.io>(others[i]), others[i]);
        }
    }
};

// A group's new codes, of which a lane has eight: state times its scale, and the update times the key. Returns the scale.
__device__ __forceinline__ float update_codes(uint2& codes, const unsigned (&old)[4], float scale, float update,
                                              const uint4& key) {
    constexpr float kLeastUnit = 0x1p-120f, kLeastOfUnits = 0.002f;  // whose inverse is finite in fp16, times 127
    const float unit = fmaxf(fmaxf(scale, fabsf(update) * (1.f / 64)), kLeastUnit), inverse = reciprocal_fast(unit);
    const __half2 state_units = __float2half2_rn(scale * inverse), update_units = __float2half2_rn(update * inverse);
    const unsigned keys[4] = {key.x, key.y, key.z, key.w};
    unsigned x[4], most_pair = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[i] = bits_of_pair(__hfma2(update_units, as_half2(keys[i]), __hmul2(state_units, as_half2(old[i]))));
        most_pair = larger<DType::f16>(most_pair, x[i]);
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
        most_pair = larger<DType::f16>(most_pair, __shfl_xor_sync(0xffffffffu, most_pair, step));
    const float2 both = unpack<DType::f16>(most_pair);
    const float most = fmaxf(both.x, both.y);
    const __half2 ratio = __float2half2_rn(127.f * reciprocal_fast(fmaxf(most, kLeastOfUnits)));
    codes = {codes_of_pairs(x[0], x[1], ratio), codes_of_pairs(x[2], x[3], ratio)};
    const float found = unit * reciprocal_fast(__low2float(ratio));
    return most == 0.f || found < kSmallestScale ? 0.f : found;
}

// The same where numbers leave the range that has units.
__device__ __forceinline__ float update_codes_in_fp32(uint2& codes, float decayed_scale, float update, const uint4& key) {
    float x[8], most = 0.f;
    const unsigned words[2] = {bias_codes(codes.x), bias_codes(codes.y)}, pairs[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float2 k = unpack<DType::f16>(pairs[i / 2]);
        x[i] = fmaf(update, i % 2 == 0 ? k.x : k.y, decayed_scale == 0.f ? 0.f : decayed_scale * code_of(words[i / 4], i % 4));
        most = larger_magnitude(most, x[i]);
    }
    const float scale = scale_of_largest(largest_of_lanes<4>(most)), inverse = inverse_of_scale(scale);
    bound_elements<8>(x, scale);
    codes = {pack_codes(x, inverse), pack_codes(x + 4, inverse)};
    return scale;
}

template <DecodeCodesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 5) decode_codes(const __grid_constant__ DecodeArgs args) {
    using Io = Storage<kConfig.io>;
    using Shared = DecodeCodesSharedPlan<kConfig>;
    constexpr int kGroups = kConfig.groups(), kVectors = kConfig.vectors(), kRows = DecodeCodesConfig::kTileRows,
                  kTiles = DecodeCodesConfig::kTiles, kWarps = DecodeCodesConfig::kWarps;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);

    wait_on_dependent_grids();
    const int sequence = blockIdx.z, head = blockIdx.y;
    i64 slot = sequence;
    if (args.slots.data != nullptr) slot = load_index(args.slots, sequence * args.slots_sequence);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int first_row = (blockIdx.x * kWarps + warp) * args.steps * kRows;
    const auto at = [&](const DecodeArgs::Heads& heads, int h) {
        return static_cast<Io*>(heads.data) + sequence * heads.sequence + h * heads.head;
    };
    const int key_head = static_cast<unsigned>(head) / static_cast<unsigned>(args.heads_per_key);
    const auto row_of = [&](int tile, int r) { return first_row + tile * kRows + g + 8 * r; };
    const auto exists = [&](int tile, int r) { return tile < args.steps && row_of(tile, r) < args.dv; };
    CodesToken<kConfig> token;
    token.load(at(args.key, key_head), at(args.query, key_head), t);
    GateForms forms;
    if constexpr (kConfig.fused_gates) forms = {.gate = GateForms::raw, .beta_is_logit = true, .beta_factor = args.beta_factor};
    RawGates gates;
    gates.load(args, sequence * args.gate.sequence + head * args.gate.head,
               sequence * args.beta.sequence + head * args.beta.head, head, forms);
    Io value[kTiles][2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int r = 0; r < 2; ++r)
            value[tile][r] = exists(tile, r) ? at(args.value, head)[row_of(tile, r)] : from_float<Io>(0.f);

    if (slot < 0 || slot == args.null_slot || slot >= args.slot_count) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (t == 0 && exists(tile, r))
                    at(args.output, head)[row_of(tile, r)] = from_float<Io>(slot >= args.slot_count ? quiet_nan() : 0.f);
        return;
    }
    const i64 row_base = static_cast<i64>(head) * args.dv + first_row;
    const auto* const codes_in =
        static_cast<const unsigned char*>(args.state_in) + slot * args.state_in_slot + row_base * kConfig.head_k;
    auto* const codes_out =
        static_cast<unsigned char*>(args.state_out) + slot * args.state_out_slot + row_base * kConfig.head_k;
    const float* const scales_in = args.scales_in + slot * args.scales_in_slot + row_base * kGroups;
    float* const scales_out = args.scales_out + slot * args.scales_out_slot + row_base * kGroups;
    // Calls act(vector in shared memory, offset in the pool) for a lane's vectors of a tile, contiguous over the warp.
    const auto each_vector = [&](int tile, const auto& act) {
#pragma unroll
        for (int i = 0; i < kRows * kVectors / 32; ++i) {
            const int row = (lane + 32 * i) / kVectors, vector = (lane + 32 * i) % kVectors;
            if (tile < args.steps && first_row + tile * kRows + row < args.dv)
                act(shared.tiles[warp][tile].codes[row] + kConfig.vector_at(row, vector),
                    (tile * kRows + row) * kConfig.head_k + vector * 16);
        }
    };
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
        each_vector(tile, [&](auto* to, int offset) { cp_async_16(to, codes_in + offset); });
        const int floats = tile < args.steps ? min(args.dv - first_row - tile * kRows, kRows) * kGroups : 0;
        for (int i = lane * 4; i < floats; i += 128)
            cp_async_16(&shared.tiles[warp][tile].scales[0][0] + i, scales_in + tile * kRows * kGroups + i);
        cp_async_fence();
    }
    token.finish(args.scale, args.qk_norm, g);
#pragma unroll
    for (int v = 0; v < kGroups; ++v)
        if (lane < 16) *reinterpret_cast<uint4*>(shared.right[warp][v][lane].bytes) = token.right[v];
    TokenScalars scalars;
    gates.finish(args, forms, scalars);

#pragma unroll 1
    for (int tile = 0; tile < args.steps; ++tile) {
        if (row_of(tile, 0) - g >= args.dv) break;
        if (tile + 1 < kTiles)
            cp_async_wait<kTiles - 1>();
        else
            cp_async_wait<0>();
        __syncwarp();
        auto& own = shared.tiles[warp][tile];
        const auto codes_at = [&](int r, int v) {
            const int row = g + 8 * r;
            return reinterpret_cast<uint2*>(own.codes[row][kConfig.vector_at(row, v * 2 + t / 2)].bytes + t % 2 * 8);
        };
        const bool has[2] = {exists(tile, 0), exists(tile, 1)};
        unsigned codes[2][kGroups][4];
        float scale[2][kGroups], sums[4] = {};
#pragma unroll
        for (int v = 0; v < kGroups; ++v) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const uint2 words = has[r] ? *codes_at(r, v) : uint2{};
                const CodePairs first(words.x), second(words.y);
                codes[r][v][0] = first.low, codes[r][v][1] = first.high;
                codes[r][v][2] = second.low, codes[r][v][3] = second.high;
                scale[r][v] = has[r] ? own.scales[g + 8 * r][v] : 0.f;
            }
            float part[4] = {};
            uint4 right{};
            if (lane < 16) right = *reinterpret_cast<const uint4*>(shared.right[warp][v][lane].bytes);
            const auto& [upper, lower] = reinterpret_cast<const unsigned(&)[2][kGroups][4]>(codes);
            mma_m16n8k16<DType::f16>(part, {upper[v][0], lower[v][0], upper[v][1], lower[v][1]}, right.x, right.y);
            mma_m16n8k16<DType::f16>(part, {upper[v][2], lower[v][2], upper[v][3], lower[v][3]}, right.z, right.w);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[i] = fmaf(scale[i / 2][v], part[i], sums[i]);
        }
        float along_key[2], most_unit = 0.f;
#pragma unroll
        for (int r = 0; r < 2; ++r) {  // lane t = 0 has products with the key, 1 with the query
            const float product = scalars.decay == 0.f ? 0.f : scalars.decay * (sums[2 * r] + sums[2 * r + 1]);
            const float state_key = __shfl_sync(0xffffffffu, product, lane & ~3) * token.key_inverse * token.key_scale;
            const float update = scalars.beta * (to_float(tile == 0 ? value[0][r] : value[1][r]) - state_key) * token.key_scale;
            if (t == 1 && has[r])
                at(args.output, head)[row_of(tile, r)] =
                    from_float<Io>(token.query_scale * fmaf(update, token.query_key, product * token.query_inverse));
            along_key[r] = update * token.key_inverse;  // of the key's fp16 elements, of which none is above 2
            most_unit = at_least(most_unit, fabsf(along_key[r]));
#pragma unroll
            for (int v = 0; v < kGroups; ++v) {
                scale[r][v] = scalars.decay == 0.f ? 0.f : scalars.decay * scale[r][v];
                most_unit = at_least(most_unit, scale[r][v]);
            }
        }
        float mine[2] = {};
        const auto key_of = [&](int v) { return *reinterpret_cast<const uint4*>(shared.right[warp][v][t].bytes); };
        if (__all_sync(0xffffffffu, most_unit < 0x1p+110f)) {
#pragma unroll
            for (int v = 0; v < kGroups; ++v) {
                const uint4 key = key_of(v);
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    uint2 words;
                    const float found = update_codes(words, codes[r][v], scale[r][v], along_key[r], key);
                    if (has[r]) *codes_at(r, v) = words;
                    if (t == v) mine[r] = found;
                }
            }
        } else {
#pragma unroll 1
            for (int v = 0; v < kGroups; ++v)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    uint2 words = has[r] ? *codes_at(r, v) : uint2{};
                    const float old = has[r] && scalars.decay != 0.f ? scalars.decay * own.scales[g + 8 * r][v] : 0.f;
                    const float found = update_codes_in_fp32(words, old, along_key[r], key_of(v));
                    if (has[r]) *codes_at(r, v) = words;
                    if (t == v) mine[r] = found;
                }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (t < kGroups && has[r]) scales_out[(tile * kRows + g + 8 * r) * kGroups + t] = mine[r];
        __syncwarp();
        each_vector(tile, [&](const auto* from, int offset) {
            Raw<16> vector;
            vector.load(from->bytes);
            vector.store_global(codes_out + offset);
        });
    }
}

}  // namespace gdn_cuda::gdn
