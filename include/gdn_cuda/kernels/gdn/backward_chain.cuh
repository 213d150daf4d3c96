// gdn/backward_chain: the two chains of the backward on Hopper's tensor cores. A warpgroup owns 64 rows of the state S, or of
// its gradient E, and takes them from chunk to chunk in registers; T, P and factors come from gdn/backward_prepare, and with a
// gate for every channel of the key all but values from gdn/kda_prepare.
//
//     backward in time  E before each chunk of the chain, which is the gradient of the state after it; dV; the gradient of the
//                       initial state (backward_chain/gradients.cuh; with gates of channels kda_gradients.cuh)
//     forward in time   S before each chunk, and R (backward_chain/states.cuh)
//
// Where the gradient of the initial state alone is wanted, blocks take segments from a list (ListedPart) and store no E and dV;
// not with gates of channels.
//
// Warps of another warpgroup load and store; forward, a third stores R. Neither chain needs the other: the second launch starts
// where the first leaves multiprocessors, and ends after it.
//
// Bound: latency of a chunk's products, one after another: 2,500 cycles, of which the tensor cores need half. With 128 blocks
// at a time a chunk takes a third longer, and L2's throughput is suspected (docs/kernels/gdn_backward.md). With gates of
// channels 2.4 us then, and 1.8 to 2.0 with fewer blocks (H200, ccbce4de; docs/kernels/kda_backward.md). Chains are split along
// time where that helps (ChainSegments).
#pragma once

#include <gdn_cuda/kernels/chunked/block.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/kda_gradients.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/states.cuh>
#include <gdn_cuda/kernels/gdn/summary/segment_rows.cuh>

namespace gdn_cuda::gdn {

// A block's part of a chain: a whole sequence, or a segment of one; rows of the state, or of M.
template <BackwardChainConfig kConfig>
struct ChainPart {
    static constexpr ChunkedConfig kBlock = kConfig.block();

    BackwardChainPlan<kConfig>& shared;
    const BackwardChainArgs& args;
    const ChunkedWork& work = shared.work;  // for places of states
    const ChainSegments& chain = args.chain;
    const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z) / chain.taken,
              segment = static_cast<int>(blockIdx.z) % chain.taken + chain.begin;
    const int pair = sequence * args.call.heads + head;
    const int row_tiles = (args.call.dv + kValueRows - 1) / kValueRows;
    const bool is_transition = static_cast<int>(blockIdx.x) >= row_tiles, is_summary = chain.summarizes && segment > 0;

    // By the whole block.
    __device__ __forceinline__ bool has_work() const {
        ChunkedBlock<kBlock> block = rows();
        if (chain.count == 1) block.finish_without_chunks();
        return block.chunks > 0 && (!is_transition || is_summary);
    }
    // By one thread.
    __device__ __forceinline__ void plan() const {
        ChunkedBlock<kBlock> block = rows();
        const int first = min(segment * chain.length, block.chunks), last = min(first + chain.length, block.chunks);
        const bool backward = kConfig.direction == Direction::backward;
        block.plan_outputs(shared.work, backward ? block.chunks - last : first, backward ? block.chunks - first : last);
        shared.work.states.begins = segment == 0;
        shared.work.states.ends = segment == chain.count - 1;
        if (is_transition) {
            shared.work.first_value = args.call.dv;  // past which TMA fills with zeros
            shared.work.rows = args.call.dk;
        }
        shared.stores = !is_summary;
        shared.from_identity = is_transition;
        shared.from = segment == 0 ? initial_state(*this) : is_summary ? StatePlace{} : after(segment - 1);
        shared.to = is_transition                ? transition()
                    : segment == chain.between() ? final_state(*this)
                    : chain.summarizes           ? after(segment)
                                                 : StatePlace{};
    }

  private:
    __device__ __forceinline__ ChunkedBlock<kBlock> rows() const {
        return {args, pair, static_cast<int>(blockIdx.x) - is_transition * row_tiles};
    }
    __device__ __forceinline__ StatePlace after(int segment) const { return {chain.state_after(sequence, head, segment)}; }
    __device__ __forceinline__ StatePlace transition() const {
        return {chain.transitions + (static_cast<i64>(pair) * chain.between() + segment) * args.call.dk * args.call.dk};
    }
};

// A block's rows of a listed segment, in the chain backward in time.
template <BackwardChainConfig kConfig>
struct ListedPart {
    static constexpr ChunkedConfig kBlock = kConfig.block();

    BackwardChainPlan<kConfig>& shared;
    const BackwardChainArgs& args;
    const SegmentRows rows{args.call, args.listed};

    __device__ __forceinline__ bool has_work() const { return rows.has_work(); }
    __device__ __forceinline__ void plan() const {
        const SummarySegment segment = rows.segment();
        ChunkedBlock<kBlock> block(args, segment.sequence, segment.sequence, 0, segment.head, rows.row_tile());
        block.plan_outputs(shared.work, block.chunks - segment.last, block.chunks - segment.first);
        const bool is_transition = rows.is_transition();
        if (is_transition) {
            shared.work.first_value = args.call.dv;  // past which TMA fills with zeros
            shared.work.rows = args.call.dk;
        }
        shared.stores = false;
        shared.from_identity = is_transition;
        shared.from = {is_transition ? nullptr : rows.before()};
        shared.to = {rows.after()};
    }
};

// By the whole block. False if it has nothing to do.
template <class Part, class Roles>
__device__ __forceinline__ bool start(const Part& part, const Roles& roles) {
    if (!part.has_work()) return false;
    if (threadIdx.x == 0) {
        part.plan();
        roles.set_barriers();
        barrier(part.shared.state_full).init(4);
        barrier(part.shared.state_empty).init(1);
        cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    return true;
}

template <BackwardChainConfig kConfig>
using StateGradientsOf = cute::conditional_t<kConfig.channels, KdaStateGradients<kConfig>, StateGradients<kConfig>>;

template <BackwardChainConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) backward_chain(const __grid_constant__ BackwardChainArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<BackwardChainPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= 227 * 1024);
    constexpr bool kBackward = kConfig.direction == Direction::backward;
    if (kBackward) launch_dependent_grids();
    const cute::conditional_t<kBackward, StateGradientsOf<kConfig>, States<kConfig>> roles{shared, args};
    const bool is_listed = kBackward && !kConfig.channels && args.listed.segments != nullptr;
    if (is_listed ? start(ListedPart<kConfig>{shared, args}, roles) : start(ChainPart<kConfig>{shared, args}, roles)) {
        const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);
        if (group == 0) {
            cutlass::arch::warpgroup_reg_dealloc<kConfig.kLoadingRegisters>();
            roles.run_loads(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0));
        } else if (group == 1) {
            cutlass::arch::warpgroup_reg_alloc<kConfig.kOtherRegisters>();
            roles.run_beside();
        } else {
            cutlass::arch::warpgroup_reg_alloc<kConfig.kOtherRegisters>();
            BackwardOwner<kConfig> own(shared, args, shared.work);
            if (shared.from_identity)
                set_identity(own.state, own);
            else
                load_state(own, shared.from);
            warpgroup_fence_operand(own.state);
            own.round_state();
            roles.run_chain(own);
            own.find_lane();
            store_state(own, shared.to);
        }
    }
    if (kBackward || blockIdx.x + blockIdx.y + blockIdx.z > 0) return;
    __syncthreads();  // a warp that waits here would hold up the block's others
    wait_on_dependent_grids();
}

}  // namespace gdn_cuda::gdn
