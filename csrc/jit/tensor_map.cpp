#include "tensor_map.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "context.hpp"
#include "device.hpp"
#include "driver.hpp"

namespace gdn_cuda::jit {
namespace {

constexpr i64 kElementBytes = 2, kTileElements = 64, kAlignment = 16;
constexpr i64 kLongestStride = i64{1} << 40;  // in bytes, exclusive

// The stride of a dimension of size 1 is arbitrary, but the driver requires a legal one.
i64 stride_bytes(i64 stride, i64 size) {
    return size <= 1 ? kAlignment : stride * kElementBytes;
}

bool legal(i64 stride, i64 size) {
    const i64 bytes = stride_bytes(stride, size);
    return bytes > 0 && bytes < kLongestStride && bytes % kAlignment == 0;
}

TensorMap encoded(const TiledTensor& tensor, DType type, int tokens, int ordinal) {
    const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(tensor.d), static_cast<cuuint64_t>(tensor.heads),
                                 static_cast<cuuint64_t>(tensor.tokens), static_cast<cuuint64_t>(tensor.batches)};
    const cuuint64_t strides[3] = {static_cast<cuuint64_t>(stride_bytes(tensor.rows.head, tensor.heads)),
                                   static_cast<cuuint64_t>(stride_bytes(tensor.rows.token, tensor.tokens)),
                                   static_cast<cuuint64_t>(stride_bytes(tensor.rows.batch, tensor.batches))};
    const cuuint32_t box[4] = {kTileElements, 1, static_cast<cuuint32_t>(tokens), 1}, steps[4] = {1, 1, 1, 1};
    CUtensorMap map;
    const Driver& cuda = driver();
    const auto encode = [&] {
        return cuda.tensor_map_encode(
            &map, type == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, tensor.rows.data,
            sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    check(in_context(cuda, ordinal, encode), "cuTensorMapEncodeTiled");
    TensorMap result;
    static_assert(sizeof result == sizeof map);
    std::memcpy(&result, &map, sizeof map);
    return result;
}

// The maps of a thread's last tensors. A map depends on nothing but what is compared here, whoever owns the memory.
class KeptMaps {
  public:
    const TensorMap& get(const TiledTensor& tensor, DType type, int tokens, int ordinal) {
        const Made made{tensor, type, tokens, ordinal, 0};
        for (std::size_t i = 0; i < kCount; ++i)
            if (addresses_[i] == tensor.rows.data && std::memcmp(&made_[i], &made, sizeof made) == 0) return maps_[i];
        const std::size_t i = oldest_;
        maps_[i] = encoded(tensor, type, tokens, ordinal);  // may throw
        addresses_[i] = tensor.rows.data, made_[i] = made;
        oldest_ = (oldest_ + 1) % kCount;
        return maps_[i];
    }

  private:
    struct Made {
        TiledTensor tensor;
        DType type;
        int tokens, ordinal, no_padding;
    };
    static_assert(std::has_unique_object_representations_v<Made>);
    static constexpr std::size_t kCount = 32;  // enough for several layers whose tensors alternate

    std::array<const void*, kCount> addresses_{};  // apart from the rest: a search reads little
    std::array<Made, kCount> made_{};
    std::array<TensorMap, kCount> maps_{};
    std::size_t oldest_ = 0;
};

}  // namespace

bool can_tile(const TiledTensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.rows.data) % kAlignment == 0 && legal(tensor.rows.head, tensor.heads) &&
           legal(tensor.rows.token, tensor.tokens) && legal(tensor.rows.batch, tensor.batches);
}

TensorMap tile_map(const TiledTensor& tensor, DType type, int tokens, int ordinal) {
    if (ordinal == kStandIn) [[unlikely]]
        return {};
    thread_local const auto kept = std::make_unique<KeptMaps>();
    return kept->get(tensor, type, tokens, ordinal);
}

}  // namespace gdn_cuda::jit
