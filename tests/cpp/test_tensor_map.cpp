// Tensor maps are kept: what was encoded before is not encoded again, and nothing else is taken for it.
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "fake_driver.hpp"
#include "jit/tensor_map.hpp"

namespace gdn_cuda::test {
namespace {

using jit::TiledTensor;

int encoded = 0;
CUresult answer = CUDA_SUCCESS;

// A map that holds what it was made from.
CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* sizes,
                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    ++encoded;
    if (answer != CUDA_SUCCESS) return answer;
    std::memset(map, 0, sizeof *map);
    cuuint64_t* to = map->opaque;
    *to++ = static_cast<cuuint64_t>(type);
    *to++ = reinterpret_cast<cuuint64_t>(data);
    *to++ = box[2];
    to = std::copy(sizes, sizes + rank, to);
    std::copy(strides, strides + rank - 1, to);
    return CUDA_SUCCESS;
}

TiledTensor tensor_at(std::uintptr_t address) {
    return {.rows = {reinterpret_cast<void*>(address), 4096, 1024, 128}, .batches = 2, .tokens = 4, .heads = 8, .d = 128};
}

struct TensorMaps : ::testing::Test {
    jit::Driver driver = kFakeDriver;

    TensorMaps() {
        driver.tensor_map_encode = &encode;
        jit::install_driver(&driver);
        encoded = 0;
        answer = CUDA_SUCCESS;
    }
    ~TensorMaps() override { jit::install_driver(nullptr); }
};

bool same(const TensorMap& a, const TensorMap& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
}

TEST_F(TensorMaps, AreEncodedOnce) {
    const TensorMap first = jit::tile_map(tensor_at(0x1000), DType::bf16, 64, 0);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(same(jit::tile_map(tensor_at(0x1000), DType::bf16, 64, 0), first));
    EXPECT_EQ(encoded, 1);
}

TEST_F(TensorMaps, DifferInEverythingThatTheyAreMadeFrom) {
    const TiledTensor tensor = tensor_at(0x1000);
    const TensorMap first = jit::tile_map(tensor, DType::bf16, 64, 0);
    int count = 1;
    const auto expect_new = [&](const TensorMap& map, bool is_another = true) {
        EXPECT_EQ(encoded, ++count);
        EXPECT_EQ(same(map, first), !is_another);
    };
    const std::vector<std::function<void(TiledTensor&)>> changes = {
        [](TiledTensor& x) { x.rows.data = reinterpret_cast<void*>(0x2000); },
        [](TiledTensor& x) { x.rows.batch *= 2; },
        [](TiledTensor& x) { x.rows.token *= 2; },
        [](TiledTensor& x) { x.rows.head *= 2; },
        [](TiledTensor& x) { ++x.batches; },
        [](TiledTensor& x) { ++x.tokens; },
        [](TiledTensor& x) { ++x.heads; },
        [](TiledTensor& x) { x.d += 8; },
    };
    for (const auto& change : changes) {
        TiledTensor other = tensor;
        change(other);
        expect_new(jit::tile_map(other, DType::bf16, 64, 0));
    }
    expect_new(jit::tile_map(tensor, DType::f16, 64, 0));
    expect_new(jit::tile_map(tensor, DType::bf16, 32, 0));
    expect_new(jit::tile_map(tensor, DType::bf16, 64, 1), false);  // another device: encoded again, to the same bits here
    EXPECT_TRUE(same(jit::tile_map(tensor, DType::bf16, 64, 0), first));
    EXPECT_EQ(encoded, count);
}

TEST_F(TensorMaps, ThatWereReplacedAreEncodedAgain) {
    const TensorMap first = jit::tile_map(tensor_at(0x1000), DType::bf16, 64, 0);
    for (std::uintptr_t i = 2; i < 200; ++i) {
        const TensorMap other = jit::tile_map(tensor_at(i * 0x1000), DType::bf16, 64, 0);
        EXPECT_EQ(other.opaque[9], (i * 0x1000) >> 8 & 0xff);
        EXPECT_FALSE(same(other, first));
    }
    EXPECT_EQ(encoded, 199);
    EXPECT_TRUE(same(jit::tile_map(tensor_at(0x1000), DType::bf16, 64, 0), first));
    EXPECT_EQ(encoded, 200);
}

TEST_F(TensorMaps, AreNotKeptWhereTheDriverRefused) {
    answer = CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 2; ++i) EXPECT_ANY_THROW(jit::tile_map(tensor_at(0x1000), DType::bf16, 64, 0));
    answer = CUDA_SUCCESS;
    EXPECT_EQ(jit::tile_map(tensor_at(0x1000), DType::bf16, 64, 0).opaque[9], 0x10);
    EXPECT_EQ(encoded, 3);
}

TEST_F(TensorMaps, AreKeptByEachThread) {
    const TensorMap first = jit::tile_map(tensor_at(0x1000), DType::bf16, 64, 0);
    std::thread([&] { EXPECT_TRUE(same(jit::tile_map(tensor_at(0x1000), DType::bf16, 64, 0), first)); }).join();
    EXPECT_EQ(encoded, 2);
}

}  // namespace
}  // namespace gdn_cuda::test
