// Kernels with one fault each, for test_emulator.py, and some without. Blocks of 64 threads, or clusters of two of 32; 256
// bytes of dynamic shared memory.
#include <gdn_cuda/kernels/common/block_group.cuh>
#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/mma.cuh>

namespace faulty {

struct Args {
    float* data;  // one element for each thread
};

// data[t] becomes data[t] + data[63 - t].
template <bool kWaits>
__device__ __forceinline__ void add_mirrored(const Args& args) {
    __shared__ float values[64];
    const int t = threadIdx.x;
    values[t] = args.data[t];
    if constexpr (kWaits) __syncthreads();
    args.data[t] = values[t] + values[63 - t];
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

__global__ void reads_past_a_tensor(const __grid_constant__ Args args) {
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

__global__ void writes_past_shared_memory(const __grid_constant__ Args) {
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

// data[t] becomes the count of wrong elements of the lane, in small integers, so exactly: of a product whose right operand is
// loaded as rows of k, of one whose right operand is loaded transposed, and of a transposed 8 x 8 matrix.
__device__ __forceinline__ float left_of(int m, int k) {
    return static_cast<float>((m + 2 * k) % 7 - 3);
}
__device__ __forceinline__ float right_of(int k, int n) {
    return static_cast<float>((3 * n + k) % 5 - 2);
}
__global__ void multiplies(const __grid_constant__ Args args) {
    using namespace gdn_cuda;
    __shared__ __nv_bfloat16 left[16][16];   // m x k
    __shared__ __nv_bfloat16 right[16][16];  // n x k
    __shared__ __nv_bfloat16 right_trans[16][16];
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int i = threadIdx.x; i < 256; i += 64) {
        left[i / 16][i % 16] = __float2bfloat16(left_of(i / 16, i % 16));
        right[i / 16][i % 16] = __float2bfloat16(right_of(i % 16, i / 16));
        right_trans[i / 16][i % 16] = __float2bfloat16(right_of(i / 16, i % 16));
    }
    __syncthreads();
    const VectorOfLane straight = VectorOfLane::straight(lane), crossed = VectorOfLane::crossed(lane);
    unsigned a[4], b[4], c[4];
    ldmatrix_x4(a, shared_address(&left[straight.row][8 * straight.vector]));
    ldmatrix_x4(b, shared_address(&right[crossed.row][8 * crossed.vector]));
    ldmatrix_x4_trans(c, shared_address(&right_trans[straight.row][8 * straight.vector]));
    int wrong = 0;
    for (int half = 0; half < 2; ++half) {
        float sums[4] = {1, 1, 1, 1}, again[4] = {1, 1, 1, 1};
        mma_m16n8k16<DType::bf16>(sums, a, b[2 * half], b[2 * half + 1]);
        mma_m16n8k16<DType::bf16>(again, a, c[2 * half], c[2 * half + 1]);
        for (int i = 0; i < 4; ++i) {
            float expected = 1;
            for (int k = 0; k < 16; ++k) expected += left_of(g + 8 * (i / 2), k) * right_of(k, 8 * half + 2 * t + i % 2);
            wrong += (sums[i] != expected) + (again[i] != expected);
        }
    }
    const float2 pair = unpack<DType::bf16>(transposed(a[0]));
    wrong += (pair.x != left_of(2 * t, g)) + (pair.y != left_of(2 * t + 1, g));
    args.data[threadIdx.x] = static_cast<float>(wrong);
}

// data[t] becomes the count of wrong elements of the lane, of a product of int8 with every digit.
__device__ __forceinline__ int left_code(int m, int k) {
    return (37 * m + 101 * k) % 256 - 128;
}
__device__ __forceinline__ int right_code(int k, int n) {
    return (53 * n + 29 * k + 7 * k * n) % 256 - 128;
}
__global__ void multiplies_codes(const __grid_constant__ Args args) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const auto packed = [](const auto& element) {
        unsigned word = 0;
        for (int i = 0; i < 4; ++i) word |= static_cast<unsigned>(element(i) & 255) << 8 * i;
        return word;
    };
    unsigned a[4], b[2];
    for (int i = 0; i < 4; ++i) a[i] = packed([&](int k) { return left_code(g + i % 2 * 8, i / 2 * 16 + 4 * t + k); });
    for (int i = 0; i < 2; ++i) b[i] = packed([&](int k) { return right_code(i * 16 + 4 * t + k, g); });
    const unsigned start[4] = {1000, 0, 5, 0x80000000u};  // the last one may wrap
    unsigned sums[4];
    gdn_cuda::mma_m16n8k32_s8(sums, a, b[0], b[1], start);
    int wrong = 0;
    for (int i = 0; i < 4; ++i) {
        int sum = 0;
        for (int k = 0; k < 32; ++k) sum += left_code(g + 8 * (i / 2), k) * right_code(k, 2 * t + i % 2);
        wrong += sums[i] != start[i] + static_cast<unsigned>(sum);
    }
    args.data[threadIdx.x] = static_cast<float>(wrong);
}

// data[t] becomes the element of the same thread of the other block, through that block's shared memory.
template <bool kBegins, bool kStays, bool kWaits>
__device__ __forceinline__ void exchange(const Args& args) {
    extern __shared__ __align__(16) unsigned char memory[];
    const gdn_cuda::BlockGroup group(2);
    const auto sync = [&] {
        group.arrive();
        group.wait();
    };
    double* const values = reinterpret_cast<double*>(memory);
    const int t = threadIdx.x;
    if constexpr (kBegins) sync();
    if constexpr (!kStays) {
        if (group.rank == 1) return;
        for (int i = 0; i < 2; ++i) sync();  // the threads that have not returned
    }
    group.store(values[t], 1 - group.rank, args.data[group.rank * 32 + t]);
    if constexpr (kWaits) sync();
    args.data[group.rank * 32 + t] = static_cast<float>(values[t]);
    if constexpr (!kWaits) sync();  // the other block has stored
}
__global__ void exchanges(const __grid_constant__ Args args) {
    exchange<true, true, true>(args);
}
__global__ void stores_into_a_block_that_has_not_begun(const __grid_constant__ Args args) {
    exchange<false, true, true>(args);
}
__global__ void stores_into_a_block_that_has_returned(const __grid_constant__ Args args) {
    exchange<true, false, true>(args);
}
__global__ void reads_before_the_cluster_barrier(const __grid_constant__ Args args) {
    exchange<true, true, false>(args);
}

}  // namespace faulty

#define REGISTER(kernel) static const emulator::Kernel<faulty::kernel> registered_##kernel{"faulty/" #kernel, ""};
REGISTER(none)
REGISTER(reads_before_a_barrier)
REGISTER(overwrites_before_a_barrier)
REGISTER(waits_for_nobody)
REGISTER(waits_in_two_places)
REGISTER(reads_past_a_tensor)
REGISTER(is_misaligned)
REGISTER(leaves_an_array)
REGISTER(overflows)
REGISTER(writes_past_shared_memory)
REGISTER(reads_what_nobody_wrote)
REGISTER(copies)
REGISTER(copies_without_a_wait)
REGISTER(multiplies)
REGISTER(multiplies_codes)
REGISTER(exchanges)
REGISTER(stores_into_a_block_that_has_not_begun)
REGISTER(stores_into_a_block_that_has_returned)
REGISTER(reads_before_the_cluster_barrier)
