// common/transposed_copy: to[b, j, i] = from[b, i, j], bit for bit; `from` is contiguous along j, `to` along i.
//
// A block copies a tile of 64 rows i by 64 columns j. Each thread copies four 16-byte vectors of the rows to shared memory by
// cp.async, all in flight at once. Then a thread reads one word from each of several consecutive rows, as many rows as a vector
// has elements. With 32-bit elements these words form one vector of `to`; with 16-bit elements a word holds two columns and the
// words form two vectors. There are no bank conflicts.
//
// If the vectors of `from` or of `to` are not 16-byte aligned, adjacent lanes load or store adjacent elements instead; the
// stores then read shared memory with four-way bank conflicts.
//
// Bound: memory, each element read and written once.
#pragma once

#include <gdn_cuda/kernels/common/bits_of.cuh>
#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/predicated_ptx.cuh>
#include <gdn_cuda/kernels/common/transposed_copy_plan.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>

namespace gdn_cuda::common {

template <TransposedCopyConfig kConfig>
struct TransposedTile {
    static constexpr unsigned kTile = kConfig.kTile, kThreads = kConfig.threads(), kPerWord = kConfig.per_word(),
                              kPerVector = kConfig.per_vector(), kWords = kTile / kPerWord, kVectors = kTile / kPerVector;
    using Element = typename BitsOf<kConfig.element_bytes>::type;

    TransposedCopySharedPlan<kConfig>& shared;
    const Element* from;  // first element of the tile, as `to`
    Element* to;
    i64 row_stride;          // between rows of `from`
    i64 column_stride;       // between columns of `to`
    unsigned rows, columns;  // remaining from the tile's start on; may exceed kTile

    // Vectors are swizzled by their row. Eight lanes write the vectors of one row; a warp reads the four words of one vector
    // from eight rows at stride kPerVector. Both hit different banks.
    __device__ __forceinline__ unsigned& word_at(unsigned row, unsigned word) {
        return shared.words[row][word ^ (row / kPerVector ^ row) % 8 * 4];
    }

    __device__ __forceinline__ void load_vectors() {
        constexpr unsigned kStep = kThreads / kVectors;
        const unsigned vector = threadIdx.x % kVectors, first = threadIdx.x / kVectors, column = vector * kPerVector;
#pragma unroll
        for (unsigned i = 0; i < kTile / kStep; ++i) {
            const unsigned row = first + i * kStep;
            if (row < rows && column < columns) cp_async_16(&word_at(row, vector * 4), from + row * row_stride + column);
        }
        cp_async_fence();
        cp_async_wait<0>();
    }

    __device__ __forceinline__ void load_elements() {
        constexpr unsigned kStep = kThreads / kTile, kAtOnce = 16;
        const unsigned column = threadIdx.x % kTile;
        const bool exists = column < columns;
        const i64 step = kStep * row_stride;
#pragma unroll 1
        for (unsigned first = threadIdx.x / kTile; first < kTile; first += kAtOnce * kStep) {
            const Element* next = from + first * row_stride + column;
            unsigned loaded[kAtOnce] = {};
#pragma unroll
            for (unsigned i = 0; i < kAtOnce; ++i, next += step) load_if(exists && first + i * kStep < rows, loaded[i], next);
#pragma unroll
            for (unsigned i = 0; i < kAtOnce; ++i)
                reinterpret_cast<Element*>(&word_at(first + i * kStep, column / kPerWord))[column % kPerWord] =
                    static_cast<Element>(loaded[i]);
        }
    }

    __device__ __forceinline__ void store_vectors() {
        constexpr unsigned kLanes = 8, kStripes = kVectors / kLanes, kStep = kThreads / kStripes / kLanes;
        const unsigned warp = threadIdx.x / 32, vector = warp % kStripes * kLanes + threadIdx.x % kLanes,
                       first = warp / kStripes * (32 / kLanes) + threadIdx.x % 32 / kLanes, row = vector * kPerVector;
#pragma unroll
        for (unsigned i = 0; i < kWords / kStep; ++i) {
            const unsigned word = first + i * kStep;
            unsigned words[kPerVector];
#pragma unroll
            for (unsigned k = 0; k < kPerVector; ++k) words[k] = word_at(row + k, word);
#pragma unroll
            for (unsigned j = 0; j < kPerWord; ++j) {
                const unsigned column = word * kPerWord + j;
                const Vector<unsigned, 4, true> made = column_of(words, j);
                if (row < rows && column < columns)
                    made.store_global(reinterpret_cast<unsigned*>(to + column * column_stride + row));
            }
        }
    }
    // The vector made of element j of each word.
    __device__ __forceinline__ static Vector<unsigned, 4, true> column_of(const unsigned (&words)[kPerVector], unsigned j) {
        Vector<unsigned, 4, true> column;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if constexpr (kPerWord == 1)
                column.items[k] = words[k];
            else
                column.items[k] = __byte_perm(words[2 * k], words[2 * k + 1], j == 0 ? 0x5410 : 0x7632);
        }
        return column;
    }

    __device__ __forceinline__ void store_elements() {
        constexpr unsigned kStep = kThreads / kTile;
        const unsigned row = threadIdx.x % kTile;
        const bool exists = row < rows;
#pragma unroll 8
        for (unsigned word = threadIdx.x / kTile; word < kWords; word += kStep) {
            const unsigned elements = word_at(row, word);
#pragma unroll
            for (unsigned j = 0; j < kPerWord; ++j) {
                const unsigned column = word * kPerWord + j;
                store_if(exists && column < columns, to + column * column_stride + row, elements >> 16 * j);
            }
        }
    }
};

template <TransposedCopyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) transposed_copy(const __grid_constant__ TransposedCopyArgs args) {
    __shared__ TransposedCopySharedPlan<kConfig> shared;
    using Element = typename TransposedTile<kConfig>::Element;
    const unsigned column_tiles = args.column_tiles(), row_tiles = args.row_tiles(), rest = blockIdx.x / column_tiles;
    const int row = static_cast<int>(rest % row_tiles) * kConfig.kTile,
              column = static_cast<int>(blockIdx.x % column_tiles) * kConfig.kTile;
    const i64 batch = rest / row_tiles;
    TransposedTile<kConfig> tile{.shared = shared,
                                 .from = static_cast<const Element*>(args.from) + batch * args.batch + row * args.row + column,
                                 .to = static_cast<Element*>(args.to) + (batch * args.columns + column) * args.rows + row,
                                 .row_stride = args.row,
                                 .column_stride = args.rows,
                                 .rows = static_cast<unsigned>(args.rows - row),
                                 .columns = static_cast<unsigned>(args.columns - column)};
    if (args.loads_vectors)
        tile.load_vectors();
    else
        tile.load_elements();
    __syncthreads();
    if (args.stores_vectors)
        tile.store_vectors();
    else
        tile.store_elements();
}

}  // namespace gdn_cuda::common
