// Kernels with Hopper's asynchronous instructions for test_hopper.py, right ones and some with one fault each.
#include <gdn_cuda/kernels/common/named_barrier.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/common/wgmma.cuh>

namespace hopper {

using namespace gdn_cuda;
using cutlass::arch::NamedBarrier;

constexpr int kRows = 64, kRowBytes = 128;
struct alignas(1024) Tile {
    unsigned char bytes[kRows * kRowBytes];
};

struct Args {
    TensorMap from, to;  // boxes of 64 tokens
    TileAt load_at, store_at;
    float* data;
    unsigned* counts;  // zeros
    int chunks;
};

__device__ __forceinline__ TileAt chunk_at(const Args& args, int chunk) {
    return {args.load_at.element, args.load_at.head, args.load_at.token + chunk * kRows, args.load_at.batch};
}

// ---- A product of a tile with itself, as TMA loads it: data (64 x 64) = x x^T. Four warps multiply, the fifth one loads.

enum class Fault {
    none,
    loads_before_arrival,
    multiplies_before_arrival,
    expects_too_much,
    expects_too_little,
    arrives_twice,
    no_barrier,
    barrier_without_fence,
    no_wgmma_fence,
    no_commit,
    reads_accumulators_in_flight,
    writes_accumulators_in_flight,
    overwrites_operand_in_flight,
    overwrites_by_tma,
    one_warp_is_missing,
    returns_in_flight,
    misaligned_operand,
    stores_without_fence,
};

struct ProductShared {
    Tile x;
    unsigned long long arrived, unused;
};

template <Fault kFault>
__global__ void product(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<ProductShared*>(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0 && kFault != Fault::no_barrier) {
        barrier(shared.arrived).init(1);
        if constexpr (kFault != Fault::barrier_without_fence) cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    if (warp == 4) {
        if (lane != 0) return;
        constexpr int kBytes =
            sizeof(Tile) + 16 * (kFault == Fault::expects_too_much) - 16 * (kFault == Fault::expects_too_little);
        barrier(shared.arrived).arrive_and_expect_tx(kBytes);
        if constexpr (kFault == Fault::arrives_twice) barrier(shared.arrived).arrive();
        tma_load(shared.x.bytes, args.from, args.load_at, barrier(shared.arrived));
        if constexpr (kFault == Fault::overwrites_by_tma) {
            barrier(shared.arrived).wait(0);
            barrier(shared.arrived).arrive_and_expect_tx(kBytes);
            tma_load(shared.x.bytes, args.from, args.load_at, barrier(shared.arrived));
            barrier(shared.arrived).wait(1);
        }
        return;
    }
    if constexpr (kFault == Fault::loads_before_arrival) {
        args.data[threadIdx.x] = static_cast<float>(shared.x.bytes[threadIdx.x]);
        barrier(shared.arrived).wait(0);
        return;
    }
    if constexpr (kFault != Fault::multiplies_before_arrival) barrier(shared.arrived).wait(0);
    if constexpr (kFault == Fault::one_warp_is_missing)
        if (warp == 3) return;
    if constexpr (kFault == Fault::stores_without_fence) {
        store_shared(shared_address(shared.x.bytes) + threadIdx.x * 4, 0u);
        NamedBarrier::sync(128, 0);
    }
    float d[32];
    const auto x = tile_operand(shared.x.bytes + (kFault == Fault::misaligned_operand ? kRowBytes : 0), 0);
    if constexpr (kFault != Fault::no_wgmma_fence) cute::warpgroup_arrive();
    for (int step = 0; step < 4; ++step) Product<DType::bf16, 64, true>::run(d, x + 2 * step, x + 2 * step, step > 0);
    if constexpr (kFault != Fault::no_commit) cute::warpgroup_commit_batch();
    if constexpr (kFault == Fault::returns_in_flight) return;
    if constexpr (kFault == Fault::writes_accumulators_in_flight) d[3] = 0;
    if constexpr (kFault == Fault::overwrites_operand_in_flight) shared.x.bytes[threadIdx.x] = 0;
    if constexpr (kFault != Fault::reads_accumulators_in_flight) cute::warpgroup_wait<0>();
    warpgroup_fence_operand(d);
    for (int i = 0; i < 32; ++i) {
        const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        args.data[row * 64 + column] = d[i];
    }
    if constexpr (kFault == Fault::multiplies_before_arrival) barrier(shared.arrived).wait(0);
}

// ---- Every instruction of Product: data[t] becomes the count of the thread's wrong elements.

__device__ __forceinline__ float left_of(int m, int k) {
    return static_cast<float>((m + 2 * k) % 7 - 3);
}
__device__ __forceinline__ float right_of(int k, int n) {
    return static_cast<float>((3 * n + k) % 5 - 2);
}
struct MultipliesShared {
    Tile left, right[2];
};
template <DType kType>
__device__ __forceinline__ void store_element(Tile& tile, int row, int column, float x) {
    const unsigned at = row_vector(tile_row(tile.bytes, row), column / 8) + column % 8 * 2;
    reinterpret_cast<unsigned short*>(__cvta_shared_to_generic(at))[0] = static_cast<unsigned short>(pack<kType>(x, 0));
}

// The product begins at row `kFirst` of k. A row of b's tiles is one n if b is contiguous along k, else one k.
template <DType kType, int kN, bool kAlongK, bool kInRegisters, int kFirst>
__device__ __forceinline__ int wrong_products(MultipliesShared& shared) {
    for (int i = threadIdx.x; i < 64 * 64; i += 128) store_element<kType>(shared.left, i / 64, i % 64, left_of(i / 64, i % 64));
    for (int i = threadIdx.x; i < 128 * 64; i += 128) {
        const int row = i / 64 % 64, column = i % 64, tile = i / 64 / 64;
        store_element<kType>(shared.right[tile], row, column,
                             kAlongK ? right_of(column, row + 64 * tile) : right_of(row, column + 64 * tile));
    }
    cutlass::arch::fence_view_async_shared();
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float d[kN / 2];
    for (float& x : d) x = 1;
    const auto left = tile_operand(&shared.left, 0) + kFirst * 2 / kDescriptorUnit;
    const auto right = kAlongK ? tile_operand(shared.right, 0) + kFirst * 2 / kDescriptorUnit
                               : tile_operand(shared.right, sizeof(Tile)) + kFirst * kRowBytes / kDescriptorUnit;
    unsigned a[4];
    for (int i = 0; i < 4; ++i) {
        const int m = 16 * warp + g + i % 2 * 8, k = kFirst + 2 * t + i / 2 * 8;
        a[i] = pack<kType>(left_of(m, k), left_of(m, k + 1));
    }
    cute::warpgroup_arrive();
    if constexpr (kInRegisters)
        Product<kType, kN, kAlongK>::run(d, a, right, true);
    else
        Product<kType, kN, kAlongK>::run(d, left, right, true);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
    int wrong = 0;
    for (int i = 0; i < kN / 2; ++i) {
        const int m = 16 * warp + g + i / 2 % 2 * 8, n = i / 4 * 8 + 2 * t + i % 2;
        float expected = 1;
        for (int k = kFirst; k < kFirst + 16; ++k) expected += left_of(m, k) * right_of(k, n);
        wrong += d[i] != expected;
    }
    __syncthreads();
    return wrong;
}
template <DType kType, int kN>
__device__ __forceinline__ int wrong_products_of(MultipliesShared& shared) {
    return wrong_products<kType, kN, true, true, 0>(shared) + wrong_products<kType, kN, true, false, 48>(shared) +
           wrong_products<kType, kN, false, true, 16>(shared) + wrong_products<kType, kN, false, false, 32>(shared);
}
__global__ void multiplies(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<MultipliesShared*>(memory);
    args.data[threadIdx.x] =
        static_cast<float>(wrong_products_of<DType::bf16, 64>(shared) + wrong_products_of<DType::bf16, 96>(shared) +
                           wrong_products_of<DType::f16, 96>(shared) + wrong_products_of<DType::f16, 128>(shared));
}

// Two products in flight, the second into other accumulators: data[t] becomes the count of wrong elements.
__global__ void overlaps(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<MultipliesShared*>(memory);
    for (int i = threadIdx.x; i < 64 * 64; i += 128) {
        store_element<DType::bf16>(shared.left, i / 64, i % 64, left_of(i / 64, i % 64));
        store_element<DType::bf16>(shared.right[0], i / 64, i % 64, right_of(i % 64, i / 64));
    }
    cutlass::arch::fence_view_async_shared();
    __syncthreads();
    float first[32], second[32];
    const auto left = tile_operand(&shared.left, 0), right = tile_operand(shared.right, 0);
    cute::warpgroup_arrive();
    Product<DType::bf16, 64, true>::run(first, left, right, false);
    cute::warpgroup_commit_batch();
    Product<DType::bf16, 64, true>::run(second, left + 2, right + 2, false);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<1>();
    float sum = 0;
    for (const float x : first) sum += x;
    cute::warpgroup_wait<0>();
    for (const float x : second) sum += x;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 32; ++i)
        for (int k = 0; k < 32; ++k) sum -= left_of(16 * warp + g + i / 2 % 2 * 8, k) * right_of(k, i / 4 * 8 + 2 * t + i % 2);
    args.data[threadIdx.x] = sum;
}

// ---- A tile is loaded, each element doubled, and stored: 128 threads

enum class Store { right, without_fence, overwrites, no_wait };

struct CopyShared {
    Tile x;
    unsigned long long arrived;
};
template <Store kStore>
__global__ void copy(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<CopyShared*>(memory);
    if (threadIdx.x == 0) {
        barrier(shared.arrived).init(1);
        cutlass::arch::fence_barrier_init();
        barrier(shared.arrived).arrive_and_expect_tx(sizeof(Tile));
        tma_load(shared.x.bytes, args.from, args.load_at, barrier(shared.arrived));
    }
    __syncthreads();
    barrier(shared.arrived).wait(0);
    for (int i = threadIdx.x; i < kRows * 8; i += 128) {
        const unsigned at = row_vector(tile_row(shared.x.bytes, i / 8), i % 8);
        const uint4 x = load_shared(at);
        const auto twice = [](unsigned pair) {
            const float2 both = unpack<DType::bf16>(pair);
            return pack<DType::bf16>(2 * both.x, 2 * both.y);
        };
        store_shared(at, uint4{twice(x.x), twice(x.y), twice(x.z), twice(x.w)});
    }
    if constexpr (kStore != Store::without_fence) cutlass::arch::fence_view_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
        tma_store(args.to, args.store_at, shared.x.bytes);
        cute::tma_store_arrive();
        if constexpr (kStore == Store::overwrites) shared.x.bytes[5] = 0;
        if constexpr (kStore != Store::no_wait) cute::tma_store_wait<0>();
    }
}

// ---- A ring of two stages: one warp loads chunks, four warps sum the first element of each row

enum class Ring { right, asks, no_wait_for_empty, releases_too_early, waits_for_a_phase_too_many };

struct RingShared {
    Tile stages[2];
    unsigned long long full[2], empty[2];
};
template <Ring kRing>
__device__ __forceinline__ void wait(Barrier& barrier, unsigned parity) {
    if constexpr (kRing == Ring::asks)
        while (!barrier.try_wait(parity)) continue;
    else
        barrier.wait(parity);
}
template <Ring kRing>
__global__ void ring(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<RingShared*>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            barrier(shared.full[i]).init(1);
            barrier(shared.empty[i]).init(4);
        }
        cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    const int warp = threadIdx.x / 32;
    if (warp == 4) {
        cutlass::arch::warpgroup_reg_dealloc<24>();
        if (cute::elect_one_sync()) {
            for (int chunk = 0; chunk < args.chunks; ++chunk) {
                const int stage = chunk % 2;
                if (kRing != Ring::no_wait_for_empty) wait<kRing>(barrier(shared.empty[stage]), chunk / 2 % 2 ^ 1);
                barrier(shared.full[stage]).arrive_and_expect_tx(sizeof(Tile));
                tma_load(shared.stages[stage].bytes, args.from, chunk_at(args, chunk), barrier(shared.full[stage]));
            }
        }
        return;
    }
    float sum = 0;
    for (int chunk = 0; chunk < args.chunks + (kRing == Ring::waits_for_a_phase_too_many); ++chunk) {
        const int stage = chunk % 2, row = threadIdx.x % kRows;
        wait<kRing>(barrier(shared.full[stage]), chunk / 2 % 2);
        const auto release = [&] {
            __syncwarp();
            if (threadIdx.x % 32 == 0) barrier(shared.empty[stage]).arrive();
        };
        if constexpr (kRing == Ring::releases_too_early) release();
        sum += unpack<DType::bf16>(load_shared_word(row_vector(tile_row(shared.stages[stage].bytes, row), 0))).x;
        if constexpr (kRing != Ring::releases_too_early) release();
    }
    args.data[threadIdx.x] = sum;
}

// ---- Named barriers, 128 threads

enum class Named { right, part_of_a_warp, other_counts, nobody_comes, comes_twice };
template <Named kNamed>
__global__ void named(const __grid_constant__ Args args) {
    __shared__ float values[64];
    const int t = threadIdx.x;
    // The upper half passes values to the lower one.
    if (t >= 64) {
        values[t - 64] = args.data[t];
        if (kNamed == Named::part_of_a_warp && t % 32 >= 16) return;
        constexpr bool kFewer = kNamed == Named::other_counts || kNamed == Named::part_of_a_warp;
        if (kNamed != Named::nobody_comes) NamedBarrier::arrive(kFewer ? 96 : 128, 1);
        if (kNamed == Named::comes_twice) NamedBarrier::arrive(128, 1);
        return;
    }
    NamedBarrier::sync(kNamed == Named::part_of_a_warp ? 96 : 128, 1);
    const bool found = named_barrier_or(64, 3, t == 63);
    args.data[t] += found ? values[t] : 0;
}

// ---- Blocks of a cluster, each of which loads half of a tile for both: 128 threads

enum class Cluster { right, no_cluster_barrier, leaves_early };

struct ClusterShared {
    Tile x;
    unsigned long long arrived, done;
};
template <Cluster kCluster>
__global__ void multicast(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<ClusterShared*>(memory);
    const unsigned rank = cute::block_rank_in_cluster();
    if (threadIdx.x == 0) {
        barrier(shared.arrived).init(1);
        barrier(shared.done).init(2);
        cutlass::arch::fence_barrier_init();
        barrier(shared.arrived).arrive_and_expect_tx(sizeof(Tile));
    }
    if constexpr (kCluster != Cluster::no_cluster_barrier) {
        cute::cluster_arrive_relaxed();
        cute::cluster_wait();
    }
    if (threadIdx.x == 0) {
        const TileAt at{args.load_at.element, args.load_at.head, static_cast<int>(rank) * 32, args.load_at.batch};
        cute::SM90_TMA_LOAD_MULTICAST_4D::copy(&args.to, reinterpret_cast<uint64_t*>(&shared.arrived), 3, 0,
                                               shared.x.bytes + rank * sizeof(Tile) / 2, at.element, at.head, at.token,
                                               at.batch);
    }
    if constexpr (kCluster == Cluster::leaves_early)
        if (rank == 1) return;
    barrier(shared.arrived).wait(0);
    if (threadIdx.x < kRows)
        args.data[rank * kRows + threadIdx.x] =
            unpack<DType::bf16>(load_shared_word(row_vector(tile_row(shared.x.bytes, threadIdx.x), 0))).x;
    if (threadIdx.x < 2) barrier(shared.done).arrive(threadIdx.x);
    barrier(shared.done).wait(0);
}

// ---- Blocks that wait for each other: one writes a tile, the next one loads it. 128 threads

enum class Order { right, waits_for_a_later_block, no_proxy_fence };

template <Order kOrder>
__global__ void hands_over(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<CopyShared*>(memory);
    if (blockIdx.x == (kOrder == Order::waits_for_a_later_block ? 1 : 0)) {
        reinterpret_cast<unsigned*>(args.data)[threadIdx.x] = pack<DType::bf16>(static_cast<float>(threadIdx.x), 0);
        __syncthreads();
        if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(args.counts) : "memory");
        return;
    }
    if (threadIdx.x == 0) {
        unsigned count;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(args.counts) : "memory");
        while (count < 1);
        barrier(shared.arrived).init(1);
        cutlass::arch::fence_barrier_init();
        if constexpr (kOrder != Order::no_proxy_fence) fence_proxy_async_global();
        barrier(shared.arrived).arrive_and_expect_tx(sizeof(Tile));
        tma_load(shared.x.bytes, args.from, args.load_at, barrier(shared.arrived));
    }
    __syncthreads();
    barrier(shared.arrived).wait(0);
    args.data[256 + threadIdx.x] =
        unpack<DType::bf16>(load_shared_word(row_vector(tile_row(shared.x.bytes, threadIdx.x / 32), threadIdx.x % 32 / 4) +
                                             threadIdx.x % 4 * 4))
            .x;
}

}  // namespace hopper

#define REGISTER(kernel, of) \
    static const emulator::Kernel<hopper::kernel<hopper::of>> GDN_REGISTERED(__COUNTER__){"hopper/" #kernel, #of};
#define GDN_REGISTERED(number) GDN_REGISTERED_(number)
#define GDN_REGISTERED_(number) registered_##number
REGISTER(product, Fault::none)
REGISTER(product, Fault::loads_before_arrival)
REGISTER(product, Fault::multiplies_before_arrival)
REGISTER(product, Fault::expects_too_much)
REGISTER(product, Fault::expects_too_little)
REGISTER(product, Fault::arrives_twice)
REGISTER(product, Fault::no_barrier)
REGISTER(product, Fault::barrier_without_fence)
REGISTER(product, Fault::no_wgmma_fence)
REGISTER(product, Fault::no_commit)
REGISTER(product, Fault::reads_accumulators_in_flight)
REGISTER(product, Fault::writes_accumulators_in_flight)
REGISTER(product, Fault::overwrites_operand_in_flight)
REGISTER(product, Fault::overwrites_by_tma)
REGISTER(product, Fault::one_warp_is_missing)
REGISTER(product, Fault::returns_in_flight)
REGISTER(product, Fault::misaligned_operand)
REGISTER(product, Fault::stores_without_fence)
REGISTER(copy, Store::right)
REGISTER(copy, Store::without_fence)
REGISTER(copy, Store::overwrites)
REGISTER(copy, Store::no_wait)
REGISTER(ring, Ring::right)
REGISTER(ring, Ring::asks)
REGISTER(ring, Ring::no_wait_for_empty)
REGISTER(ring, Ring::releases_too_early)
REGISTER(ring, Ring::waits_for_a_phase_too_many)
REGISTER(named, Named::right)
REGISTER(named, Named::part_of_a_warp)
REGISTER(named, Named::other_counts)
REGISTER(named, Named::nobody_comes)
REGISTER(named, Named::comes_twice)
REGISTER(multicast, Cluster::right)
REGISTER(multicast, Cluster::no_cluster_barrier)
REGISTER(multicast, Cluster::leaves_early)
REGISTER(hands_over, Order::right)
REGISTER(hands_over, Order::waits_for_a_later_block)
REGISTER(hands_over, Order::no_proxy_fence)
static const emulator::Kernel<hopper::multiplies> registered_multiplies{"hopper/multiplies", ""};
static const emulator::Kernel<hopper::overlaps> registered_overlaps{"hopper/overlaps", ""};
