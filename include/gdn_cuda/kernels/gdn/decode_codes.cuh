// gdn/decode_codes: gdn/decode's step for int8 states of many sequences, one gate a head.
//
// A warp has a head of a sequence, or a part of its rows, at a time, and goes on to another one: 16 rows after the other pass
// through its own stages in shared memory, those of its next head too, so that loads never pause. Products with key and query
// are those of integer tensor products (recurrence/code_products.cuh), which take codes as they are; the update is in fp32:
// a lane has half a group of columns of two rows at a time.
//
// A lane reads the codes that it copied itself; scales and keys are those of other lanes, so the warp syncs.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/decode_codes/plan.cuh>
#include <gdn_cuda/kernels/recurrence/code_products.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>

namespace gdn_cuda::gdn {

// A part of a head of a sequence.
template <DecodeCodesConfig kConfig>
struct CodesUnit {
    using Io = Storage<kConfig.io>;
    int sequence, column;

    __device__ __forceinline__ CodesUnit(const DecodeCodesArgs& args, int unit)
        : sequence(unit / args.columns), column(unit % args.columns) {}
    // The warp's next one.
    __device__ __forceinline__ void advance(const DecodeCodesArgs& args) {
        sequence += args.sequences_ahead;
        column += args.columns_ahead;
        if (column < args.columns) return;
        column -= args.columns;
        ++sequence;
    }
    __device__ __forceinline__ int head(const DecodeCodesArgs& args) const { return column >> args.part_bits; }
    __device__ __forceinline__ int first_row(const DecodeCodesArgs& args) const {
        return (column & ((1 << args.part_bits) - 1)) * args.tiles * DecodeCodesConfig::kTileRows;
    }
    __device__ __forceinline__ int key_head(const DecodeCodesArgs& args) const {
        const unsigned long long product = static_cast<unsigned long long>(head(args)) * args.key_inverse;
        return args.key_inverse == 0 ? head(args) : static_cast<int>(product >> 32);
    }
    __device__ __forceinline__ i64 slot(const DecodeArgs& step) const {
        return step.slots.data == nullptr ? sequence : load_index(step.slots, sequence * step.slots_sequence);
    }
    __device__ __forceinline__ Io* at(const DecodeArgs::Heads& heads, int of_head) const {
        return static_cast<Io*>(heads.data) + sequence * heads.sequence + of_head * heads.head;
    }
    // The first row of the part.
    __device__ __forceinline__ CodedStates state(const DecodeCodesArgs& args, const void* data, i64 at, float* scales,
                                                 i64 scales_at) const {
        return state_pointer<signed char>(data, at, scales, scales_at) +
               (static_cast<i64>(head(args)) * args.step.dv + first_row(args)) * kConfig.head_k;
    }
};

__device__ __forceinline__ bool is_slot(const DecodeArgs& step, i64 slot) {
    return slot >= 0 && slot != step.null_slot && slot < step.slot_count;
}

// Copies a warp's tiles in order, of one unit after the other.
template <DecodeCodesConfig kConfig>
struct CodesFetch {
    using Shared = DecodeCodesSharedPlan<kConfig>;
    static constexpr int kRows = DecodeCodesConfig::kTileRows, kGroups = kConfig.groups();

    typename Shared::Warp& shared;
    const DecodeCodesArgs& args;
    CodesUnit<kConfig> next;
    int next_slot;             // below 0: none
    int tile;                  // of this unit
    int units;                 // after this one
    unsigned stage = 0;
    bool exists;    // the slot
    int rows;     // from the lane's first one in the tile on
    const signed char* codes;
    const float* scales;  // of rows g and g + 8, for lanes t = 0 and 1

    __device__ __forceinline__ CodesFetch(typename Shared::Warp& shared, const DecodeCodesArgs& args,
                                          const CodesUnit<kConfig>& first, int count)
        : shared(shared), args(args), next(first), tile(0), units(count) {
        next_slot = slot_of_next();
        begin();
    }
    __device__ __forceinline__ void operator()() {
        if (units >= 0) {
            if (exists) copy();
            if (++tile == args.tiles) begin();
        }
        stage = stage + 1 == kConfig.stages ? 0 : stage + 1;
        cp_async_fence();
    }

  private:
    __device__ __forceinline__ int slot_of_next() const {
        const i64 slot = next.slot(args.step);
        return is_slot(args.step, slot) ? static_cast<int>(slot) : -1;
    }
    __device__ __forceinline__ void begin() {
        tile = 0;
        if (--units < 0) return;
        const DecodeArgs& step = args.step;
        const i64 slot = next_slot;
        exists = slot >= 0;
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        rows = step.dv - next.first_row(args) - g;
        const CodedStates from =
            next.state(args, step.state_in, slot * step.state_in_slot, step.scales_in, slot * step.scales_in_slot);
        codes = from.codes + g * kConfig.head_k + CodeProducts<kConfig.head_k>::column(0);
        scales = from.scales + (g + 8 * t) * kGroups;
        next.advance(args);
        if (units > 0) next_slot = slot_of_next();
    }
    __device__ __forceinline__ void copy() {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        auto& to = shared.stages[stage];
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int i = 0; i < kConfig.vectors(); ++i)
                cp_async_16_zfill(static_cast<unsigned>(__cvta_generic_to_shared(&to.codes[r][i][lane])),
                                  codes + 8 * r * kConfig.head_k + 64 * i, rows > 8 * r);
        if (t < 2 && rows > 8 * t) cp_async<kGroups * 4>(to.scales[g + 8 * t], scales);
        codes += kRows * kConfig.head_k;
        scales += kRows * kGroups;
        rows -= kRows;
    }
};

// Key, query and gates of a head.
template <DecodeCodesConfig kConfig>
struct CodesToken {
    using Io = Storage<kConfig.io>;
    using Products = CodeProducts<kConfig.head_k>;
    Products products;
    float key[Products::kPerLane];  // the lane's columns
    TokenScalars scalars;

    __device__ __forceinline__ void make(const auto& tokens, const DecodeArgs& step) {
        constexpr int kOwn = kConfig.head_k / 32;
        const Io* const rows[2] = {reinterpret_cast<const Io*>(tokens[0]), reinterpret_cast<const Io*>(tokens[1])};
        {
            const int first = threadIdx.x % 32 * kOwn;
            float key_square = 0.f, query_square = 0.f, query_key = 0.f;
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
                const float k = to_float(rows[0][first + i]), q = to_float(rows[1][first + i]);
                key_square = fmaf(k, k, key_square);
                query_square = fmaf(q, q, query_square);
                query_key = fmaf(q, k, query_key);
            }
            scalars.key_scale = 1.f;
            scalars.query_scale = step.scale;
            if (step.qk_norm) {
                scalars.key_scale = rsqrtf(group_sum<32>(key_square) + kNormEpsilon);
                scalars.query_scale *= rsqrtf(group_sum<32>(query_square) + kNormEpsilon);
            }
            scalars.query_key = group_sum<32>(query_key) * scalars.key_scale * scalars.query_scale;
        }
        float own[Products::kPerLane];
        load(own, Products::has_query() ? rows[1] : rows[0]);
        products.make(own);
        load(key, rows[0]);
#pragma unroll
        for (float& x : key) x = opaque(x);
    }

  private:
    __device__ __forceinline__ static void load(float (&to)[Products::kPerLane], const Io* from) {
#pragma unroll
        for (int i = 0; i < Products::kPerLane / 8; ++i) {
            Vector<Io, 8, true> eight;
            eight.load(from + Products::column(i / 2) + i % 2 * 8);
#pragma unroll
            for (int j = 0; j < 8; ++j) to[8 * i + j] = eight[j];
        }
    }
};

// 16 columns of a row: S <- scale S + update k^T, in place of its codes. Returns the new scale, which the pair of lanes of the
// group finds together.
__device__ __forceinline__ float update_codes(unsigned (&codes)[4], float scale, float update, const float* key,
                                              unsigned exponent) {
    float x[16], most[2] = {};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
        x[j] = fmaf(update, key[j], scale * code_of(bias_codes(codes[j / 4]), j % 4, exponent));
        most[j % 2] = j < 2 ? fabsf(x[j]) : larger_magnitude(most[j % 2], x[j]);
    }
    const float rounded = scale_of_largest(largest_of_lanes<2>(at_least(most[0], most[1])));
    bound_elements<16>(x, rounded);
    const float inverse = inverse_of_scale(rounded);
#pragma unroll
    for (int j = 0; j < 4; ++j) codes[j] = pack_codes(x + 4 * j, inverse);
    return rounded;
}
// The same in units of `scale`: S / scale + relative k^T. Nothing overflows.
__device__ __forceinline__ float update_relative_codes(unsigned (&codes)[4], float scale, float relative, const float* key,
                                                       unsigned exponent) {
    float x[16], most[2] = {};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
        x[j] = fmaf(relative, key[j], code_of(bias_codes(codes[j / 4]), j % 4, exponent));
        most[j % 2] = j < 2 ? fabsf(x[j]) : larger_magnitude(most[j % 2], x[j]);
    }
    const float largest = largest_of_lanes<2>(at_least(most[0], most[1]));
    const float rounded = scale_of_largest(largest * scale);
    const float inverse = rounded == 0.f ? 0.f : reciprocal_fast(largest * (1.f / 127));
#pragma unroll
    for (int j = 0; j < 4; ++j) codes[j] = pack_codes(x + 4 * j, inverse);
    return rounded;
}

template <DecodeCodesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks)
    decode_codes(const __grid_constant__ DecodeCodesArgs args) {
    using Io = Storage<kConfig.io>;
    using Products = CodeProducts<kConfig.head_k>;
    constexpr int kRows = DecodeCodesConfig::kTileRows, kVectors = kConfig.vectors(), kGroups = kConfig.groups();
    extern __shared__ __align__(16) unsigned char memory[];
    const unsigned warp = threadIdx.x / 32;
    auto& shared = reinterpret_cast<DecodeCodesSharedPlan<kConfig>*>(memory)->warps[warp];
    const DecodeArgs& step = args.step;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    wait_on_dependent_grids();
    // Units of a block are as far apart as blocks are, so that all multiprocessors have as many.
    const int first = static_cast<int>(warp * gridDim.x + blockIdx.x);
    if (first >= args.units) return;
    int units = (args.units - first + args.warps - 1) / args.warps;
    CodesUnit<kConfig> place(args, first);

    const auto copy_token = [&](const CodesUnit<kConfig>& of_unit, unsigned to) {
        constexpr int kTokenVectors = kConfig.head_k / 8;
        if (kTokenVectors < 16 && lane >= 2 * kTokenVectors) return;
        const int vector = lane % kTokenVectors, row = lane / kTokenVectors;
        cp_async_16(&shared.tokens[to][row][vector],
                    of_unit.at(row == 0 ? step.key : step.query, of_unit.key_head(args)) + 8 * vector);
    };
    copy_token(place, 0);
    cp_async_fence();
    CodesFetch<kConfig> fetch(shared, args, place, units);
#pragma unroll 1
    for (int i = 0; i < kConfig.stages; ++i) fetch();

    const unsigned exponent = opaque(kCodeExponent);
    unsigned stage = 0, parity = 0;
#pragma unroll 1
    for (; units > 0; --units, parity ^= 1) {
        const int sequence = place.sequence, head = place.head(args), first_row = place.first_row(args);
        const i64 slot = place.slot(step);
        GateForms forms{.gate = GateForms::raw, .beta_is_logit = true, .beta_factor = step.beta_factor};
        RawGates gates;
        gates.load(step, sequence * step.gate.sequence + head * step.gate.head,
                   sequence * step.beta.sequence + head * step.beta.head, head, forms);
        const Io* value_at = place.at(step.value, head) + first_row + g;
        Io* output_at = place.at(step.output, head) + first_row + g;
        int rows = min(step.dv - first_row, args.tiles * kRows) - g;  // from the lane's own on
        if (!is_slot(step, slot)) {
            const float x = slot >= step.slot_count && slot != step.null_slot ? quiet_nan() : 0.f;
#pragma unroll 1
            for (int row = t; row * 8 < rows; row += 4) output_at[row * 8] = from_float<Io>(x);
        }
        const CodedStates to =
            place.state(args, step.state_out, slot * step.state_out_slot, step.scales_out, slot * step.scales_out_slot);
        place.advance(args);
        if (units > 1) copy_token(place, parity ^ 1);
        if (args.tiles > kConfig.stages)
            cp_async_wait<kConfig.stages>();
        else
            cp_async_wait<0>();
        __syncwarp();
        CodesToken<kConfig> token;
        token.make(shared.tokens[parity], step);
        gates.finish(step, forms, token.scalars);
        const TokenScalars& scalars = token.scalars;
        const bool kept = !resets(scalars), exists = is_slot(step, slot);
        signed char* codes_at = to.codes + g * kConfig.head_k + Products::column(0);
        float* scales_at = to.scales + g * kGroups + t / 2;
        const float key_scale = scalars.key_scale * kCodeSumUnit, query_scale = scalars.query_scale * kCodeSumUnit;
        const float most_relative = token.products.plain ? 0x1p60f : -1.f;

#pragma unroll 1
        for (int tile = 0; tile < args.tiles; ++tile) {
            float value[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) value[r] = rows > 8 * r ? to_float(value_at[8 * r]) : 0.f;
            cp_async_wait<kConfig.stages - 1>();
            __syncwarp();
            unsigned codes[2][kVectors][4];
            float scales[2][kGroups];
            const auto& from = shared.stages[stage];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
#pragma unroll
                for (int i = 0; i < kVectors; ++i) {
                    const uint4 words = *reinterpret_cast<const uint4*>(&from.codes[r][i][lane]);
                    codes[r][i][0] = words.x, codes[r][i][1] = words.y, codes[r][i][2] = words.z, codes[r][i][3] = words.w;
                }
                Vector<float, kGroups, true> row;
                if (kept && rows > 8 * r)
                    row.load(from.scales[g + 8 * r]);
                else
                    row.clear();
#pragma unroll
                for (int i = 0; i < kGroups; ++i) scales[r][i] = row[i];
            }
            stage = stage + 1 == kConfig.stages ? 0 : stage + 1;
            __syncwarp();
            fetch();
            if (!exists) continue;

            if (args.copies) {
#pragma unroll
                for (int r = 0; r < 2; ++r)
#pragma unroll
                    for (int i = 0; i < kVectors; ++i) {
                        Raw<16>{{codes[r][i][0], codes[r][i][1], codes[r][i][2], codes[r][i][3]}}.store_global(
                            codes_at + 8 * r * kConfig.head_k + 64 * i);
                        if (t % 2 == 0) scales_at[8 * r * kGroups + 2 * i] = t < 2 ? scales[r][2 * i] : scales[r][2 * i + 1];
                    }
                codes_at += kRows * kConfig.head_k, scales_at += kRows * kGroups;
                continue;
            }
            float sums[2], updates[2], own[2][kVectors], relative[2][kVectors];
            token.products.multiply(sums, codes, scales);
            bool safe = kConfig.units;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float state_key = __shfl_sync(0xffffffffu, sums[r], 0, 4) * key_scale;
                const float correction = scalars.beta * (value[r] - scalars.decay * state_key);
                if (rows > 8 * r && t == 2)
                    output_at[8 * r] =
                        from_float<Io>(fmaf(correction, scalars.query_key, scalars.decay * (sums[r] * query_scale)));
                updates[r] = correction * scalars.key_scale;
#pragma unroll
                for (int i = 0; i < kVectors; ++i) {
                    own[r][i] = scalars.decay * (t < 2 ? scales[r][2 * i] : scales[r][2 * i + 1]);
                    relative[r][i] = updates[r] * reciprocal_fast(own[r][i]);
                    safe = safe && fabsf(relative[r][i]) <= most_relative;
                }
            }
            const auto finish = [&](const auto& update) {
#pragma unroll
                for (int r = 0; r < 2; ++r)
#pragma unroll
                    for (int i = 0; i < kVectors; ++i) {
                        const float rounded = update(codes[r][i], r, i);
                        if (rows <= 8 * r) continue;
                        Raw<16>{{codes[r][i][0], codes[r][i][1], codes[r][i][2], codes[r][i][3]}}.store_global(
                            codes_at + 8 * r * kConfig.head_k + 64 * i);
                        if (t % 2 == 0) scales_at[8 * r * kGroups + 2 * i] = rounded;
                    }
            };
            if (kConfig.units && __all_sync(0xffffffffu, safe))
                finish([&](auto& words, int r, int i) {
                    return update_relative_codes(words, own[r][i], relative[r][i], token.key + 16 * i, exponent);
                });
            else
                finish([&](auto& words, int r, int i) {
                    return update_codes(words, own[r][i], updates[r], token.key + 16 * i, exponent);
                });
            rows -= kRows;
            value_at += kRows, output_at += kRows;
            codes_at += kRows * kConfig.head_k, scales_at += kRows * kGroups;
        }
    }
    launch_dependent_grids();
}

}  // namespace gdn_cuda::gdn
