// What the order of memory accesses costs a kernel that reads and writes a pool in place, with no arithmetic to speak of:
//
//     nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a benchmarks/pool_traffic.cu -o pool_traffic && ./pool_traffic
//
// Microseconds for 512 MB (gdn/decode at 16/32, B = 256, fp32), 256 and 128 MB, replayed as a graph with the L2 emptied first.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using Size = long long;

void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
}

// A block takes kThreads * kVectors * 16 bytes at once.
template <int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads) through_registers(uint4* pool) {
    uint4* mine = pool + static_cast<Size>(blockIdx.x) * kThreads * kVectors + threadIdx.x;
    uint4 x[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) x[i] = mine[i * kThreads];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        x[i].x ^= 1;
        mine[i * kThreads] = x[i];
    }
}

// As gdn/decode does: kSteps steps of 32 bytes a thread, four of them on their way through shared memory.
template <int kThreads, int kSteps>
__global__ void __launch_bounds__(kThreads) through_stages(uint4* pool) {
    constexpr int kStages = 4;
    __shared__ uint4 stages[kStages][2][kThreads];
    uint4* mine = pool + static_cast<Size>(blockIdx.x) * kThreads * 2 * kSteps + threadIdx.x;
    const auto fetch = [&](int step) {
        if (step < kSteps)
            for (int i = 0; i < 2; ++i)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                                 static_cast<unsigned>(__cvta_generic_to_shared(&stages[step % kStages][i][threadIdx.x]))),
                             "l"(mine + (step * 2 + i) * kThreads)
                             : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int step = 0; step < kStages; ++step) fetch(step);
    for (int step = 0; step < kSteps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
        uint4 x[2];
        for (int i = 0; i < 2; ++i) x[i] = stages[step % kStages][i][threadIdx.x];
        fetch(step + kStages);
        for (int i = 0; i < 2; ++i) {
            x[i].x ^= 1;
            mine[(step * 2 + i) * kThreads] = x[i];
        }
    }
}

template <class Launch>
float microseconds(char* pool, char* flush, Size flush_bytes, Launch&& launch) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cudaEvent_t begin, end;
    check(cudaStreamCreate(&stream));
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    launch(reinterpret_cast<uint4*>(pool), stream);
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&replay, graph, 0));
    std::vector<float> times;
    for (int i = 0; i < 30; ++i) {
        check(cudaMemsetAsync(flush, i, flush_bytes, stream));
        check(cudaEventRecord(begin, stream));
        check(cudaGraphLaunch(replay, stream));
        check(cudaEventRecord(end, stream));
        check(cudaStreamSynchronize(stream));
        float milliseconds;
        check(cudaEventElapsedTime(&milliseconds, begin, end));
        times.push_back(milliseconds * 1000);
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
}

}  // namespace

int main() {
    constexpr Size kLargest = Size{512} << 20, kFlush = Size{256} << 20;
    char *pool, *flush;
    check(cudaMalloc(&pool, kLargest));
    check(cudaMalloc(&flush, kFlush));
    const auto row = [&](const char* name, int block_bytes, auto kernel, int threads) {
        std::printf("%-18s %4d KB a block, %3d threads", name, block_bytes >> 10, threads);
        for (Size bytes = kLargest; bytes >= kLargest / 4; bytes /= 2)
            std::printf(" %7.1f", microseconds(pool, flush, kFlush, [&](uint4* at, cudaStream_t stream) {
                            kernel<<<static_cast<unsigned>(bytes / block_bytes), threads, 0, stream>>>(at);
                        }));
        std::printf("\n");
    };
    row("through registers", 2 << 10, through_registers<128, 1>, 128);
    row("through registers", 4 << 10, through_registers<256, 1>, 256);
    row("through registers", 4 << 10, through_registers<128, 2>, 128);
    row("through registers", 8 << 10, through_registers<128, 4>, 128);
    row("through registers", 16 << 10, through_registers<256, 4>, 256);
    row("through registers", 32 << 10, through_registers<256, 8>, 256);
    row("through stages", 16 << 10, through_stages<128, 4>, 128);
    row("through stages", 32 << 10, through_stages<128, 8>, 128);
    row("through stages", 64 << 10, through_stages<128, 16>, 128);
}
