// Kernels with one fault each, for test_emulator.py, and one without. Blocks of 64 threads, 256 bytes of dynamic shared memory.
#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>

namespace faulty {

struct Args {
    float* data;  // one number for each thread
};

// data[t] becomes data[t] + data[63 - t].
template <bool kWaits>
__device__ __forceinline__ void add_mirrored(const Args& args) {
    __shared__ float numbers[64];
    const int t = threadIdx.x;
    numbers[t] = args.data[t];
    if constexpr (kWaits) __syncthreads();
    args.data[t] = numbers[t] + numbers[63 - t];
}
__global__ void none(const __grid_constant__ Args args) {
    add_mirrored<true>(args);
}
__global__ void reads_before_a_barrier(const __grid_constant__ Args args) {
    add_mirrored<false>(args);
}

__global__ void overwrites_before_a_barrier(const __grid_constant__ Args args) {
    const int t = threadIdx.x;
    const float mirrored = args.data[63 - t];
    args.data[t] = mirrored;
}

__global__ void waits_for_nobody(const __grid_constant__ Args) {
    if (threadIdx.x == 0) __syncthreads();
    __syncwarp();
}

__global__ void waits_in_two_places(const __grid_constant__ Args) {
    if (threadIdx.x % 32 < 16)
        __syncwarp();
    else
        __ballot_sync(0xffffffffu, true);
}

__global__ void reads_behind_a_tensor(const __grid_constant__ Args args) {
    args.data[threadIdx.x] = args.data[threadIdx.x + 1];
}

__global__ void is_misaligned(const __grid_constant__ Args args) {
    if (threadIdx.x == 0) *reinterpret_cast<float4*>(args.data + 1) = {0, 0, 0, 0};
}

__global__ void leaves_an_array(const __grid_constant__ Args args) {
    float four[4] = {0, 1, 2, 3};
    args.data[threadIdx.x] = four[threadIdx.x];
}

__global__ void overflows(const __grid_constant__ Args args) {
    const int row = static_cast<int>(threadIdx.x) << 20;
    args.data[threadIdx.x] = static_cast<float>(row * 4096);
}

__global__ void writes_behind_shared_memory(const __grid_constant__ Args) {
    extern __shared__ __align__(16) unsigned char memory[];
    memory[threadIdx.x * 4 + 1] = 1;
    memory[threadIdx.x * 4 + 4] = 1;
}

__global__ void reads_what_nobody_wrote(const __grid_constant__ Args args) {
    extern __shared__ __align__(16) unsigned char memory[];
    args.data[threadIdx.x] = reinterpret_cast<float*>(memory)[threadIdx.x];
}

template <bool kWaits>
__device__ __forceinline__ void copy(const Args& args) {
    extern __shared__ __align__(16) unsigned char memory[];
    float* const mine = reinterpret_cast<float*>(memory) + threadIdx.x * 4;
    if (threadIdx.x < 16) {
        gdn_cuda::cp_async_16(mine, args.data + threadIdx.x * 4);
        gdn_cuda::cp_async_fence();
        if constexpr (kWaits) gdn_cuda::cp_async_wait<0>();
        args.data[threadIdx.x * 4] = mine[0] + 1;
    }
}
__global__ void copies(const __grid_constant__ Args args) {
    copy<true>(args);
}
__global__ void copies_without_a_wait(const __grid_constant__ Args args) {
    copy<false>(args);
}

}  // namespace faulty

#define REGISTER(kernel) static const emulator::Kernel<faulty::kernel> registered_##kernel{"faulty/" #kernel, ""};
REGISTER(none)
REGISTER(reads_before_a_barrier)
REGISTER(overwrites_before_a_barrier)
REGISTER(waits_for_nobody)
REGISTER(waits_in_two_places)
REGISTER(reads_behind_a_tensor)
REGISTER(is_misaligned)
REGISTER(leaves_an_array)
REGISTER(overflows)
REGISTER(writes_behind_shared_memory)
REGISTER(reads_what_nobody_wrote)
REGISTER(copies)
REGISTER(copies_without_a_wait)
