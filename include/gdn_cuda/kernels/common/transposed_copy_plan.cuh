// Configuration, shared memory and arguments of common/transposed_copy, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::common {

struct TransposedCopyConfig {
    int element_bytes;  // 2 or 4: elements are copied as bits

    constexpr bool operator==(const TransposedCopyConfig&) const = default;
    static constexpr int kTile = 64;                              // rows and columns of a block's tile
    constexpr int threads() const { return 64 * element_bytes; }  // four vectors of 16 bytes each
    constexpr int per_word() const { return 4 / element_bytes; }
    constexpr int per_vector() const { return 16 / element_bytes; }

    GDN_FIELDS(element_bytes)
};

template <TransposedCopyConfig kConfig>
struct TransposedCopySharedPlan {
    alignas(16) unsigned words[kConfig.kTile][kConfig.kTile / kConfig.per_word()];  // [row][word]
};

struct TransposedCopyArgs {
    const void* from = nullptr;
    void* to = nullptr;      // (batches, columns, rows), contiguous
    i64 batch = 0, row = 0;  // strides of `from` in elements; its columns are contiguous
    int rows = 0, columns = 0;
    bool loads_vectors = false, stores_vectors = false;

    GDN_HOST_DEVICE constexpr unsigned row_tiles() const { return tiles(rows); }
    GDN_HOST_DEVICE constexpr unsigned column_tiles() const { return tiles(columns); }

  private:
    GDN_HOST_DEVICE static constexpr unsigned tiles(int size) {
        constexpr unsigned kTile = TransposedCopyConfig::kTile;
        return (static_cast<unsigned>(size) + kTile - 1) / kTile;
    }
};

}  // namespace gdn_cuda::common
