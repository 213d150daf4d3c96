// ssd/replay_step: rows of int8 codes, in registers from their load on, with the members of ReplayRows.
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/common/tf32.cuh>
#include <gdn_cuda/kernels/recurrence/code_pairs.cuh>
#include <gdn_cuda/kernels/ssd/replay_step/place.cuh>

namespace gdn_cuda::ssd {

// Where a vector of 8 elements is in a row of parts: two rows have four in different banks.
__device__ __forceinline__ int part_vector_at(int row, int vector) {
    return vector ^ (row & 1) << 2;
}

// Each C as a sum of two vectors of fp16, times a power of two: rows 2 t and 2 t + 1. A warp has a C at a time.
template <ReplayStepConfig kConfig>
__device__ __forceinline__ void store_parts(ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args, int length) {
    using Io = Storage<kConfig.io>;
    constexpr int kColumns = kConfig.states / 32;  // each lane has
    const int lane = threadIdx.x % 32, column = lane * kColumns;
#pragma unroll 1
    for (int t = threadIdx.x / 32; t < length; t += ReplayStepConfig::kHeads) {
        float C[kColumns], most = 0.f;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            C[i] = column < args.states ? to_float(reinterpret_cast<const Io*>(shared.C[t].bytes)[column + i]) : 0.f;
            most = fmaxf(most, fabsf(C[i]));
        }
        const gdn::UnitScale unit(gdn::largest_of_lanes<32>(most));
        if (lane == 0) shared.part_scale[t] = unit.inverse;
        const auto pairs = [&](int part) {
            const int row = 2 * t + part;
            return reinterpret_cast<unsigned*>(shared.parts[row] + part_vector_at(row, column / 8)) + column % 8 / 2;
        };
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) {
            const float low = C[2 * i] * unit.scale, high = C[2 * i + 1] * unit.scale;
            const unsigned near = pack<DType::f16>(low, high);
            pairs(0)[i] = near;
            pairs(1)[i] = pack_residual<DType::f16>(low, high, near);
        }
    }
}

// A warp has tiles of 16 rows, as mma.sync's left operand: lane (g, t) has 8 contiguous codes of each group of 32 in rows g and
// g + 8 of a tile. Columns of C are in the same order.
template <ReplayStepConfig kConfig>
struct ReplayCodes {
    static constexpr int kWarps = ReplayStepConfig::kHeads, kTileRows = 16, kTiles = kConfig.most_rows() / (kTileRows * kWarps),
                         kGroups = kConfig.code_groups(), kLanes = 4, kColumns = gdn::kCodeGroup / kLanes,
                         kScales = kGroups < kLanes ? 1 : kGroups / kLanes;

    Raw<kColumns> codes[kTiles][2][kGroups];
    float scales[kTiles][2][kScales];  // lane t has groups t, t + 4, ...
    signed char* block;                // the block's first row in the pool
    float* block_scales;
    int groups;  // of a row
    int warp, lane, g, t;

    __device__ __forceinline__ ReplayCodes(const ReplayStepArgs& args, const ReplayPlace<kConfig>& place)
        : groups(args.states / gdn::kCodeGroup),
          warp(threadIdx.x / 32),
          lane(threadIdx.x % 32),
          g(lane / kLanes),
          t(lane % kLanes) {
        const i64 first_row = static_cast<i64>(place.group) * args.group_heads * args.channels + place.first_row;
        block = static_cast<signed char*>(args.pool) + place.slot * args.pool_slot + first_row * args.states;
        block_scales = args.scales + place.slot * args.scales_slot + first_row * groups;
    }

    __device__ __forceinline__ int first_of(int tile) const { return (tile * kWarps + warp) * kTileRows; }
    __device__ __forceinline__ int row_of(int tile, int half) const { return first_of(tile) + half * 8 + g; }

    // All loads are in flight at once. Rows past the block's last are that one again.
    __device__ __forceinline__ void load(const ReplayStepArgs& args, const ReplayPlace<kConfig>& place) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            if (first_of(tile) >= place.rows) break;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = min(row_of(tile, half), place.rows - 1);
                const signed char* const from = block + row * args.states + t * kColumns;
#pragma unroll
                for (int i = 0; i < kGroups; ++i)
                    codes[tile][half][i].load_streaming(from + min(i, groups - 1) * gdn::kCodeGroup);
#pragma unroll
                for (int i = 0; i < kScales; ++i)
                    scales[tile][half][i] = block_scales[row * groups + min(i * kLanes + t, groups - 1)];
            }
        }
    }
    __device__ __forceinline__ void clear_padding(const ReplayStepArgs&) {}  // groups past the states are not read

    // Stores the products of the block's rows with every C.
    __device__ __forceinline__ void multiply(ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs&,
                                             const ReplayPlace<kConfig>& place) const {
        if (first_of(0) >= place.rows) return;
        constexpr bool kOnePass = kConfig.tokens <= 4;
        const int columns = 2 * place.length;
#pragma unroll 1
        for (int column = 0; column < (kOnePass ? 8 : columns); column += 8) {
            const int token = column / 2 + t;
            const float unit = token < place.length ? shared.part_scale[token] : 0.f;
            float sums[kTiles][2] = {};
#pragma unroll
            for (int i = 0; i < kGroups; ++i) {
                if (i >= groups) break;
                uint4 c{};
                if (column + g < columns)
                    c = *reinterpret_cast<const uint4*>(shared.parts[column + g] + part_vector_at(column + g, i * kLanes + t));
#pragma unroll
                for (int tile = 0; tile < kTiles; ++tile) {
                    if (first_of(tile) >= place.rows) break;
                    float parts[4] = {};
                    const uint2 upper = codes[tile][0][i].bits, lower = codes[tile][1][i].bits;
                    // Else the compiler widens all codes before the loop.
                    const auto pairs = [](unsigned x) { return gdn::CodePairs(kOnePass ? x : opaque(x)); };
                    const gdn::CodePairs a = pairs(upper.x), b = pairs(lower.x), next_a = pairs(upper.y),
                                         next_b = pairs(lower.y);
                    mma_m16n8k16<DType::f16>(parts, {a.low, b.low, a.high, b.high}, c.x, c.y);
                    mma_m16n8k16<DType::f16>(parts, {next_a.low, next_b.low, next_a.high, next_b.high}, c.z, c.w);
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        sums[tile][half] =
                            fmaf(unit * scale_of(tile, half, i), parts[2 * half] + parts[2 * half + 1], sums[tile][half]);
                }
            }
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    if (const int row = row_of(tile, half); token < place.length && row < place.rows)
                        shared.products[token][row] = sums[tile][half];
        }
    }

    // Adds the accepted tokens to the state, and writes it: by products of 8 entries, if all is finite. Weights of entries that
    // a reset hides are 0.
    __device__ __forceinline__ void fold(const ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                         const ReplayPlace<kConfig>& place) const {
        constexpr bool kFits = kConfig.states <= 128 || kConfig.tokens > 1;  // in registers
        if constexpr (kFits)
            if (is_finite(shared, args, place)) return fold_by<true>(shared, args, place);
        fold_by<false>(shared, args, place);
    }

  private:
    static constexpr unsigned kTf32Bits = 0xffffe000u;

    // What two rows take from the entries.
    struct FoldRows {
        using Io = Storage<kConfig.io>;
        const ReplayStepSharedPlan<kConfig>& shared;
        int row[2], first_stored[2], first_new[2];
        float state_decay[2];
        const float* weights[2];

        __device__ __forceinline__ FoldRows(const ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                            const ReplayPlace<kConfig>& place, int upper, int lower)
            : shared(shared), row{upper, lower} {
            const int row_of_weights = place.fold_row(args);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                row[half] = min(row[half], place.rows - 1);
                const int head = place.channel_of(args, row[half]).head;
                const auto past = shared.past[head][row_of_weights];
                first_stored[half] = place.length + past.first_stored, first_new[half] = past.first_new;
                state_decay[half] = past.state_decay;
                weights[half] = shared.weights[head][row_of_weights];
            }
        }
        __device__ __forceinline__ bool counts(const ReplayPlace<kConfig>& place, int entry, int half) const {
            return entry >= (entry < place.length ? first_new[half] : first_stored[half]);
        }
        __device__ __forceinline__ float weighted(int entry, int half) const {
            return weights[half][entry] * to_float(reinterpret_cast<const Io*>(shared.x[entry].bytes)[row[half]]);
        }
    };
    __device__ __forceinline__ static int first_entry(const ReplayStepArgs& args, const ReplayPlace<kConfig>& place) {
        return args.verifies() ? place.length : 0;
    }
    // The whole warp: of its rows, and of all columns.
    __device__ __forceinline__ bool is_finite(const ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                              const ReplayPlace<kConfig>& place) const {
        const int entries = place.length + place.stored, first = first_entry(args, place);
        float zero = 0.f;  // NaN, if anything is not finite
#pragma unroll 1
        for (int entry = first; entry < entries; ++entry)
#pragma unroll 1
            for (int n = 2 * lane; n < args.states; n += 64) {
                const float2 pair = unpack<kConfig.io>(*reinterpret_cast<const unsigned*>(shared.B[entry].bytes + 2 * n));
                zero = fmaf(pair.x, 0.f, fmaf(pair.y, 0.f, zero));
            }
#pragma unroll 1
        for (int tile = 0; tile < kTiles && first_of(tile) < place.rows; ++tile) {
            const FoldRows rows(shared, args, place, row_of(tile, 0), row_of(tile, 1));
#pragma unroll 1
            for (int entry = first + t; entry < entries; entry += kLanes)
#pragma unroll
                for (int half = 0; half < 2; ++half) zero = fmaf(rows.weighted(entry, half), 0.f, zero);
        }
        return __all_sync(0xffffffffu, zero == 0.f);
    }
    template <bool kProducts>
    __device__ __forceinline__ void fold_by(const ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                            const ReplayPlace<kConfig>& place) const {
        using Io = Storage<kConfig.io>;
        const int entries = place.length + place.stored, first = first_entry(args, place);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            if (first_of(tile) >= place.rows) break;
            const FoldRows rows(shared, args, place, row_of(tile, 0), row_of(tile, 1));
#pragma unroll
            for (int i = 0; i < kGroups; ++i) {
                if (i >= groups) break;
                float wide[2][kColumns];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float decay = rows.state_decay[half], own = scale_of(tile, half, i),
                                scale = decay == 0.f ? 0.f : decay * own;
                    const uint2 bits = codes[tile][half][i].bits;
                    const unsigned words[2] = {gdn::bias_codes(opaque(bits.x)), gdn::bias_codes(opaque(bits.y))};
#pragma unroll
                    for (int j = 0; j < kColumns; ++j) wide[half][j] = scale * gdn::code_of(words[j / 4], j % 4);
                }
                const auto columns = [&](int entry) {
                    return reinterpret_cast<const Io*>(shared.B[entry].bytes) + i * gdn::kCodeGroup;
                };
                if constexpr (kProducts) {
#pragma unroll 1
                    for (int entry = first + t; entry < entries + t; entry += 8) {
                        unsigned high[4], low[4];
#pragma unroll
                        for (int k = 0; k < 4; ++k) {
                            const int at = entry + k / 2 * 4;
                            const float x = at < entries ? rows.weighted(at, k % 2) : 0.f;
                            high[k] = __float_as_uint(x) & kTf32Bits;
                            low[k] = __float_as_uint(x - __uint_as_float(high[k]));
                        }
                        // Column g of a product is one that the lane of the same number has of its codes.
                        const int column = g / 2 * kColumns + g % 2;
#pragma unroll
                        for (int j = 0; j < kColumns; j += 2) {
                            const unsigned b[2] = {
                                entry < entries ? __float_as_uint(to_float(columns(entry)[column + j])) : 0,
                                entry + 4 < entries ? __float_as_uint(to_float(columns(entry + 4)[column + j])) : 0};
                            float sums[4] = {wide[0][j], wide[0][j + 1], wide[1][j], wide[1][j + 1]};
                            mma_m16n8k8_tf32(sums, low, b[0], b[1]);
                            mma_m16n8k8_tf32(sums, high, b[0], b[1]);
                            wide[0][j] = sums[0], wide[0][j + 1] = sums[1], wide[1][j] = sums[2], wide[1][j + 1] = sums[3];
                        }
                    }
                } else {
#pragma unroll 1
                    for (int entry = first; entry < entries; ++entry) {
                        Vector<Io, kColumns, true> B;
                        B.load(columns(entry) + t * kColumns);
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            if (!rows.counts(place, entry, half)) continue;
                            const float weighted = rows.weighted(entry, half);
#pragma unroll
                            for (int j = 0; j < kColumns; ++j) wide[half][j] = fmaf(weighted, B[j], wide[half][j]);
                        }
                    }
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) store(wide[half], i, rows.row[half], row_of(tile, half) < place.rows);
            }
        }
    }

    __device__ __forceinline__ float scale_of(int tile, int half, int group) const {
        return __shfl_sync(0xffffffffu, scales[tile][half][group / kLanes], (lane & ~(kLanes - 1)) | group % kLanes);
    }
    // Rounds a lane's columns of a group.
    __device__ __forceinline__ void store(float (&x)[kColumns], int group, int row, bool exists) const {
        float most = 0.f;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) most = gdn::larger_magnitude(most, x[j]);
        const float scale = gdn::scale_of_largest(gdn::largest_of_lanes<kLanes>(most)), inverse = gdn::inverse_of_scale(scale);
        gdn::bound_elements<kColumns>(x, scale);
        if (!exists) return;
        const Raw<kColumns> packed{.bits = {gdn::pack_codes(x, inverse), gdn::pack_codes(x + 4, inverse)}};
        packed.store_global(block + row * groups * gdn::kCodeGroup + group * gdn::kCodeGroup + t * kColumns);
        if (t == 0) block_scales[row * groups + group] = scale;
    }
};

}  // namespace gdn_cuda::ssd
