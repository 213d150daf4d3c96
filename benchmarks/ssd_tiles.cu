// What loads and stores alone would take of a Mamba-2 prefill: blocks with the tiles of k heads of a group, C, B and X in, Y
// out, and nothing computed. With and without clusters of two blocks of a group that share C and B by TMA multicast. bf16, 128
// heads of 64 channels, 8 groups, 128 states a channel, 8 sequences of 4096 tokens:
//
//     nvcc -arch=sm_90a -std=c++17 -O3 benchmarks/ssd_tiles.cu -o /tmp/ssd_tiles && /tmp/ssd_tiles
//
// prints nanoseconds for each head and chunk of 64 tokens; HBM at 4.24 TB/s would take 4.41. An NVIDIA H200, driver 580.159.04,
// CUDA 13.0, three stages: 10.0, 6.7, 5.7 and 5.0 with one to four heads a block; 11.8, 7.4 and 6.5 with clusters, so multicast
// loses, and heads have to share C and B within a block.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kSequences = 8, kTokens = 4096, kHeads = 128, kGroups = 8, kP = 64, kN = 128, kChunk = 64;
constexpr int kChunks = kTokens / kChunk, kGroupHeads = kHeads / kGroups, kTile = kChunk * 64 * 2;  // bytes of 64 x 64

void check(cudaError_t error) {
    if (error != cudaSuccess) {
        std::printf("%s\n", cudaGetErrorString(error));
        std::exit(1);
    }
}

__device__ __forceinline__ unsigned address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
__device__ __forceinline__ void init(uint64_t* barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count));
}
__device__ __forceinline__ void expect(uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes) : "memory");
}
// On the barrier of the same name in block `rank` of the cluster.
__device__ __forceinline__ void arrive(uint64_t* barrier, int rank) {
    asm volatile(
        "{ .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }" ::"r"(address(barrier)),
        "r"(rank)
        : "memory");
}
__device__ __forceinline__ void wait(uint64_t* barrier, int parity) {
    asm volatile(
        "{ .reg .pred done;\n again:\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again; }" ::"r"(address(barrier)),
        "r"(parity)
        : "memory");
}
// (element, head, token) of a tensor.
__device__ __forceinline__ void load(void* to, const CUtensorMap* map, uint64_t* full, int element, int head, int token) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
            address(to)),
        "l"(map), "r"(address(full)), "r"(element), "r"(head), "r"(token)
        : "memory");
}
__device__ __forceinline__ void load_for_two(void* to, const CUtensorMap* map, uint64_t* full, int element, int head,
                                             int token) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(address(to)),
        "l"(map), "r"(address(full)), "r"(element), "r"(head), "r"(token), "h"(static_cast<uint16_t>(3))
        : "memory");
}
__device__ __forceinline__ void store(const CUtensorMap* map, const void* from, int element, int head, int token) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(address(from)), "r"(element), "r"(head), "r"(token)
                 : "memory");
}

template <int kOwn>
struct Stage {
    unsigned char c[2][kTile], b[2][kTile], x[kOwn][kTile];
};

// blockIdx: the heads' part of a group, the group, the sequence.
template <int kOwn, int kStages, bool kShared>
__global__ void __launch_bounds__(64, 1) tiles(const __grid_constant__ CUtensorMap c, const __grid_constant__ CUtensorMap b,
                                               const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto* stages = reinterpret_cast<Stage<kOwn>*>(memory);
    __shared__ uint64_t full[kStages], empty[kStages];
    const int first = blockIdx.x * kOwn, heads = min(kOwn, kGroupHeads - first), group = blockIdx.y,
              token = blockIdx.z * kTokens, rank = kShared ? blockIdx.x % 2 : 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) {
            init(&full[i], 1);
            init(&empty[i], kShared ? 2 : 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    if (kShared) asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0) {
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            const int at = chunk % kStages, from = token + chunk * kChunk;
            Stage<kOwn>& stage = stages[at];
            wait(&empty[at], (chunk / kStages & 1) ^ 1);
            expect(&full[at], (4 + heads) * kTile);
            for (int half = 0; half < 2; ++half) {
                if (!kShared) {
                    load(stage.c[half], &c, &full[at], half * 64, group, from);
                    load(stage.b[half], &b, &full[at], half * 64, group, from);
                } else if (half == rank) {
                    load_for_two(stage.c[half], &c, &full[at], half * 64, group, from);
                    load_for_two(stage.b[half], &b, &full[at], half * 64, group, from);
                }
            }
            for (int i = 0; i < heads; ++i) load(stage.x[i], &x, &full[at], 0, group * kGroupHeads + first + i, from);
        }
    } else if (threadIdx.x == 32) {
        const auto release = [&](int chunk) {
            for (int block = 0; block < (kShared ? 2 : 1); ++block) arrive(&empty[chunk % kStages], kShared ? block : 0);
        };
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            const int at = chunk % kStages;
            wait(&full[at], chunk / kStages & 1);
            for (int i = 0; i < heads; ++i)
                store(&y, stages[at].x[i], 0, group * kGroupHeads + first + i, token + chunk * kChunk);
            asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group.read 1;" ::: "memory");
            if (chunk > 0) release(chunk - 1);
        }
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        release(kChunks - 1);
    }
    __syncthreads();
    if (kShared) asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
}

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

CUtensorMap map_of(void* data, int width, int heads) {
    static Encode encode = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result;
        check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
        return reinterpret_cast<Encode>(found);
    }();
    CUtensorMap map;
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(heads),
                                static_cast<cuuint64_t>(kSequences) * kTokens};
    const cuuint64_t strides[] = {sizes[0] * 2, sizes[0] * sizes[1] * 2};
    const cuuint32_t box[] = {64, 1, kChunk}, steps[] = {1, 1, 1};
    if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        std::exit(2);
    return map;
}

template <int kOwn, int kStages, bool kShared>
void measure(const CUtensorMap& c, const CUtensorMap& b, const CUtensorMap& x, const CUtensorMap& y) {
    auto* kernel = tiles<kOwn, kStages, kShared>;
    const int bytes = std::max<int>(kStages * sizeof(Stage<kOwn>), 120 * 1024);  // one block a multiprocessor, as a real one
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    int parts = (kGroupHeads + kOwn - 1) / kOwn;
    if (kShared) parts += parts % 2;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(parts, kGroups, kSequences);
    config.blockDim = dim3(64);
    config.dynamicSmemBytes = bytes;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {2, 1, 1};
    config.attrs = &cluster;
    config.numAttrs = kShared ? 1 : 0;
    cudaEvent_t start, end;
    check(cudaEventCreate(&start));
    check(cudaEventCreate(&end));
    float best = 1e9f;
    for (int i = 0; i < 20; ++i) {
        check(cudaEventRecord(start));
        check(cudaLaunchKernelEx(&config, kernel, c, b, x, y));
        check(cudaEventRecord(end));
        check(cudaEventSynchronize(end));
        float ms;
        check(cudaEventElapsedTime(&ms, start, end));
        best = std::min(best, ms);
    }
    std::printf("%d heads a block, %d stages%s: %.3f ms, %.2f ns a head and chunk\n", kOwn, kStages,
                kShared ? ", C and B for two blocks at a time" : "", best, best * 1e6 / (kSequences * kChunks * kHeads));
}

}  // namespace

int main() {
    const size_t states = sizeof(uint16_t) * kSequences * kTokens * kGroups * kN,
                 rows = sizeof(uint16_t) * kSequences * kTokens * kHeads * kP;
    void *c, *b, *x, *y;
    check(cudaMalloc(&c, states));
    check(cudaMalloc(&b, states));
    check(cudaMalloc(&x, rows));
    check(cudaMalloc(&y, rows));
    const CUtensorMap maps[] = {map_of(c, kN, kGroups), map_of(b, kN, kGroups), map_of(x, kP, kHeads), map_of(y, kP, kHeads)};
    measure<1, 3, false>(maps[0], maps[1], maps[2], maps[3]);
    measure<2, 3, false>(maps[0], maps[1], maps[2], maps[3]);
    measure<2, 4, false>(maps[0], maps[1], maps[2], maps[3]);
    measure<3, 3, false>(maps[0], maps[1], maps[2], maps[3]);
    measure<4, 3, false>(maps[0], maps[1], maps[2], maps[3]);
    measure<1, 3, true>(maps[0], maps[1], maps[2], maps[3]);
    measure<2, 3, true>(maps[0], maps[1], maps[2], maps[3]);
    measure<2, 4, true>(maps[0], maps[1], maps[2], maps[3]);
    measure<3, 3, true>(maps[0], maps[1], maps[2], maps[3]);
    return 0;
}
