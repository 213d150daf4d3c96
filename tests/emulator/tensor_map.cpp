// Includes csrc/jit/tensor_map.cpp with a driver that makes the emulator's tensor maps, and refuses what the real one refuses.
#include "tensor_map.hpp"

#include <cstring>
#include <stdexcept>

#include "jit/device.hpp"
#include "jit/driver.hpp"

namespace {

void require(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(std::string("cuTensorMapEncodeTiled: expected ") + what);
}

int bytes_of(CUtensorMapDataType type) {
    switch (type) {
        case CU_TENSOR_MAP_DATA_TYPE_UINT8:
            return 1;
        case CU_TENSOR_MAP_DATA_TYPE_UINT16:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
        case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
            return 2;
        case CU_TENSOR_MAP_DATA_TYPE_UINT32:
        case CU_TENSOR_MAP_DATA_TYPE_INT32:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
            return 4;
        default:
            throw std::runtime_error("cuTensorMapEncodeTiled: a type that the emulator has not");
    }
}

int row_of(CUtensorMapSwizzle swizzle) {
    switch (swizzle) {
        case CU_TENSOR_MAP_SWIZZLE_NONE:
            return 16;
        case CU_TENSOR_MAP_SWIZZLE_32B:
            return 32;
        case CU_TENSOR_MAP_SWIZZLE_64B:
            return 64;
        case CU_TENSOR_MAP_SWIZZLE_128B:
            return 128;
        default:
            throw std::runtime_error("cuTensorMapEncodeTiled: a swizzle that the emulator has not");
    }
}

CUresult encode(CUtensorMap* into, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* sizes,
                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave interleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
    emulator::EmulatedTensorMap map{};
    require(rank >= 1 && rank <= 5, "1 to 5 dimensions");
    require(interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            "no interleaving and zeros, all that the emulator has");
    require(reinterpret_cast<std::uintptr_t>(data) % 16 == 0, "memory aligned to 16 bytes");
    map.mark = emulator::kTensorMap;
    map.data = static_cast<char*>(data);
    map.rank = static_cast<std::uint8_t>(rank);
    map.element_bytes = static_cast<std::uint8_t>(bytes_of(type));
    map.swizzle = static_cast<std::uint8_t>(row_of(swizzle));
    for (cuuint32_t i = 0; i < rank; ++i) {
        require(sizes[i] >= 1 && sizes[i] <= cuuint64_t{1} << 32, "sizes from 1 to 2^32");
        require(box[i] >= 1 && box[i] <= 256, "boxes of 1 to 256 elements along a dimension");
        require(steps[i] == 1, "neighbouring elements, all that the emulator has");
        map.sizes[i] = sizes[i];
        map.box[i] = static_cast<std::uint16_t>(box[i]);
        if (i == 0) continue;
        require(strides[i - 1] % 16 == 0 && strides[i - 1] < cuuint64_t{1} << 40,
                "strides of multiples of 16 bytes below 2^40");
        map.strides[i - 1] = static_cast<std::int64_t>(strides[i - 1]);
    }
    const cuuint32_t inner = box[0] * map.element_bytes;
    require(inner % 16 == 0, "rows of multiples of 16 bytes in a box");
    require(swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || inner <= map.swizzle,
            "rows of a box that are no longer than the swizzle's");
    static_assert(sizeof map == sizeof *into);
    std::memcpy(into, &map, sizeof map);
    return CUDA_SUCCESS;
}

}  // namespace

namespace gdn_cuda::jit {

static const Driver& emulated_driver() {
    static const Driver table = [] {
        Driver made{};
        made.tensor_map_encode = encode;
        made.ctx_get_current = [](CUcontext* current) {  // every thread has one
            *current = reinterpret_cast<CUcontext>(current);
            return CUDA_SUCCESS;
        };
        return made;
    }();
    return table;
}

}  // namespace gdn_cuda::jit

#define driver emulated_driver
#define kStandIn kMostDevices  // here the stand-in device has memory
#include "jit/tensor_map.cpp"

// jit::tile_map of a tensor with 16-bit elements, for tests that launch a kernel without an operator; strides in elements.
extern "C" __attribute__((visibility("default"))) void emulator_tile_map(void* into, void* data, const long long (&sizes)[4],
                                                                         const long long (&strides)[3], int tokens) {
    const gdn_cuda::jit::TiledTensor tensor{{data, strides[0], strides[1], strides[2]}, sizes[0], sizes[1], sizes[2], sizes[3]};
    const gdn_cuda::TensorMap map = gdn_cuda::jit::tile_map(tensor, gdn_cuda::DType::bf16, tokens, 0);
    std::memcpy(into, &map, sizeof map);
}
