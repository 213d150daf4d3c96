// Products with the Toeplitz matrix of a channel's taps on tensor cores, with taps as left operands.
//
// A tile of 512 tokens is a matrix of 64 tokens by 8 rows: token 64 n + x is element x of row n. For the products
//     z[target] += sum over sources of h[target - source] u[source]
// an mma combines 16 targets with 16 sources of eight rows. Its left operand depends only on d, where the targets begin 16 d
// tokens after the sources: four words of a table of pairs of taps. Its right operand, four consecutive tokens per lane, is
// an eight-byte vector of the tokens in shared memory. Both operands go from shared memory to the tensor core without
// further instructions.
//
// With (g, t) = (lane / 4, lane % 4), elements within blocks of 16 are ordered as
//     targets: mma row g is token 2 g, row g + 8 is token 2 g + 1
//     sources: mma indices 2 t, 2 t + 1, 2 t + 8, 2 t + 9 are tokens 4 t, 4 t + 1, 4 t + 2, 4 t + 3
// so that sums[i][n + 2 e] of a lane is token 16 i + 2 g + e of row 2 t + n. The transposed product, whose targets precede
// the sources, uses the same words with their halves swapped.
//
// Shared memory holds tokens in units of eight (TileRing), eight units per row. Units are permuted within their row by an
// XOR with bits of the row's index, so that the same units of eight consecutive rows, and pairs of units of four rows, are
// in different banks.
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/band_plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/product.cuh>

namespace gdn_cuda::conv {

// XORed with a unit's index within its row.
__device__ __forceinline__ int unit_swizzle(int row) {
    return row % 4 * 2 + row / 4 % 2;
}
// A ring and a further XOR of its units (0 or 4), which gives adjacent channels different banks.
template <int kUnits, int kParts>
struct BandRing {
    static constexpr int kRows = kUnits / 8, kPartBytes = kUnits * 16;

    TileRing<kUnits, kParts>& ring;
    int flip;

    // `unit` may be negative.
    __device__ __forceinline__ int place(int unit) const {
        const int at = unit & (kUnits - 1);
        return at ^ unit_swizzle(at / 8) ^ flip;
    }
    __device__ __forceinline__ uint4& unit(int part, int unit) const {
        return *reinterpret_cast<uint4*>(ring.units[part][place(unit)]);
    }
    // Two tokens; `index` counts pairs.
    __device__ __forceinline__ unsigned& pair(int part, int index) const {
        return ring.units[part][place(index >> 2)][index & 3];
    }
    // The shared-memory address of a row's unit 0 in part 0; an XOR with 16 n gives unit n. `row` may be negative.
    __device__ __forceinline__ unsigned row_address(int row) const {
        const int at = row & (kRows - 1);
        return shared_address(ring.units[0][0]) + 128 * at + 16 * (unit_swizzle(at) ^ flip);
    }
};

template <int kUnits, int kParts>
__device__ __forceinline__ BandRing<kUnits, kParts> band_ring(TileRing<kUnits, kParts>& ring, int flip) {
    return {ring, flip};
}

// Two tokens; `index` counts pairs and may be negative.
template <int kUnits, int kParts>
__device__ __forceinline__ void store_pair(const BandRing<kUnits, kParts>& ring, int index, float first, float second) {
    unsigned pair[kParts];
    split_pair(pair, first, second);
#pragma unroll
    for (int part = 0; part < kParts; ++part) ring.pair(part, index) = pair[part];
}

// Four blocks of sources of a lane's row.
template <int kParts>
struct BandSources {
    unsigned blocks[4][kParts][2];

    // `row`: the lane's; may be negative.
    template <int kUnits>
    __device__ __forceinline__ static unsigned first_byte(const BandRing<kUnits, kParts>& ring, int row) {
        const int at = row & (ring.kRows - 1), t = static_cast<int>(threadIdx.x) % 4;
        return 128 * at + ((8 * t) ^ (16 * unit_swizzle(at)) ^ (16 * ring.flip));
    }
    template <int kUnits>
    __device__ __forceinline__ void load(const BandRing<kUnits, kParts>& ring, unsigned first_byte, int block) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const char* const from = reinterpret_cast<const char*>(ring.ring.units[part]) + (first_byte ^ (32 * block));
            const uint2 x = *reinterpret_cast<const uint2*>(from);
            blocks[block][part][0] = x.x;
            blocks[block][part][1] = x.y;
        }
    }
};

// Called by all lanes; `tap(x)` is h[x], 0 outside of the filter. A __syncwarp has to follow.
template <int kTaps, int kParts>
__device__ __forceinline__ void fill_band(BandTable<kTaps, kParts>& table, int lane, int rows, auto&& tap) {
    using Table = BandTable<kTaps, kParts>;
    const int used = Table::kBefore + kBandRow * rows + kBandBlock;
#pragma unroll 1
    for (int i = lane; i < used; i += 32) {
        const int x = i - Table::kBefore;
        unsigned pair[kParts];
        split_pair(pair, tap(x), tap(x - 1));
#pragma unroll
        for (int part = 0; part < kParts; ++part) table.words[part][i] = pair[part];
    }
}

// Left operands of targets 16 d tokens after their sources, or before them (kBefore).
template <bool kBefore, int kTaps, int kParts>
__device__ __forceinline__ void load_band(unsigned (&a)[kParts][4], const BandTable<kTaps, kParts>& table, int d) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
    const int first = BandTable<kTaps, kParts>::kBefore + 16 * d + (kBefore ? 4 * t - 2 * g : 2 * g - 4 * t);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        const uint2 x = *reinterpret_cast<const uint2*>(table.words[part] + first);
        const uint2 y = *reinterpret_cast<const uint2*>(table.words[part] + first + (kBefore ? 2 : -2));
        const auto swapped = [](unsigned pair) { return __byte_perm(pair, 0, 0x1032); };
        a[part][0] = kBefore ? swapped(x.y) : x.x;
        a[part][1] = kBefore ? swapped(x.x) : x.y;
        a[part][2] = kBefore ? swapped(y.y) : y.x;
        a[part][3] = kBefore ? swapped(y.x) : y.y;
    }
}

// The left operands of up to 64 kRows + 16 taps in registers, for many tiles.
template <int kRows, int kParts>
struct BandTaps {
    static constexpr int parts = kParts, rows_in_registers = kRows;
    unsigned words[4 * kRows + 1][kParts][4];

    template <int kTaps>
    __device__ __forceinline__ BandTaps(const BandTable<kTaps, kParts>& table, int rows) : words{} {
        static_assert(band_rows(kTaps) <= kRows);
#pragma unroll
        for (int d = 0; d <= 4 * kRows; ++d)
            if (d <= 4 * rows) load_band<false>(words[d], table, d);
    }
};
template <bool kBefore, int kRows, int kParts>
__device__ __forceinline__ void load_band(unsigned (&a)[kParts][4], const BandTaps<kRows, kParts>& taps, int d) {
    static_assert(!kBefore);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[part][i] = taps.words[d][part][i];
}

// sums += the band's product of the tile. kBefore: targets precede sources, which is the transposed band. Tensor cores
// truncate their sums, which shows in fp32 after the many products of a long filter; kSeparateSums gives each d sums of its
// own, which are then added with rounding to nearest. `residual` is added to h[0], rounded to bf16; 0 for nothing.
// `taps`: a BandTable or BandTaps.
template <bool kBefore, bool kSeparateSums, int kUnits, int kParts, class Taps>
__device__ __forceinline__ void add_band(TileSums& sums, const BandRing<kUnits, kParts>& ring, const Taps& taps, int tile,
                                         int rows, float residual) {
    constexpr int kTapParts = Taps::parts;
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
    BandSources<kParts> sources;
    // Block i of targets is multiplied by block (i + shift) % 4 of the loaded sources.
    const auto add = [&](int d, int shift) {
        unsigned a[kTapParts][4];
        load_band<kBefore>(a, taps, d);
        TileSums step_sums = {};
        TileSums& to = kSeparateSums ? step_sums : sums;
        for_products<kTapParts, kParts>([&](int left, int right) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const unsigned(&b)[2] = sources.blocks[(i + shift) % 4][right];
                mma_m16n8k16<DType::bf16>(to[i], a[left], b[0], b[1]);
            }
        });
        if constexpr (kSeparateSums) {
#pragma unroll
            for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] += step_sums[i / 4][i % 4];
        }
    };
    unsigned from = BandSources<kParts>::first_byte(ring, tile / kBandRow + g);
#pragma unroll
    for (int block = 0; block < 4; ++block) sources.load(ring, from, block);
    add(0, 0);
    if constexpr (kTapParts == 1) {  // `residual` of h[0], on the diagonal
        const unsigned low = g / 2 == t ? pack<DType::bf16>(residual, 0.f) : 0, high = low << 16;
        const unsigned a[4] = {g % 2 == 0 ? low : 0, g % 2 == 0 ? high : 0, g % 2 == 1 ? low : 0, g % 2 == 1 ? high : 0};
#pragma unroll
        for (int i = 0; i < 4; ++i) mma_m16n8k16<DType::bf16>(sums[i], a, sources.blocks[i][0][0], sources.blocks[i][0][1]);
    }
    const auto add_row = [&](int row) {
        from = BandSources<kParts>::first_byte(ring, tile / kBandRow + g + (kBefore ? row : -row));
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            sources.load(ring, from, kBefore ? step : 3 - step);
            add(4 * row - 3 + step, kBefore ? step + 1 : 3 - step);
        }
    };
    if constexpr (Taps::rows_in_registers > 0) {
#pragma unroll
        for (int row = 1; row <= Taps::rows_in_registers; ++row)
            if (row <= rows) add_row(row);
    } else {
#pragma unroll 1
        for (int row = 1; row <= rows; ++row) add_row(row);
    }
}

// Where a tile's sums are in shared memory, for lanes to read others' sums.
__device__ __forceinline__ int place_of_sum(int token, int flip) {
    const int unit = token / 4;  // four sums
    return 4 * (unit ^ (unit / 8 % 2) ^ (unit / 32 % 4 * 2) ^ flip) + token % 4;
}
__device__ __forceinline__ void store_sums(float* to, const TileSums& sums, int flip) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
    int unit = 32 * t + (g / 2 ^ 2 * t ^ flip);  // place_of_sum; i and n change other bits
    asm volatile("" : "+r"(unit));  // opaque: hoisting the places of all sums out of loops over tiles would take registers
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int n = 0; n < 2; ++n)
            *reinterpret_cast<float2*>(to + 4 * (unit ^ 4 * i ^ i / 2) + kBandRow * n + 2 * g % 4) = {sums[i][n],
                                                                                                      sums[i][n + 2]};
}

}  // namespace gdn_cuda::conv
