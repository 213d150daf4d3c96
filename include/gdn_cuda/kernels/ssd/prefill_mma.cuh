// ssd/prefill_mma: Mamba-2's scan on the tensor cores of any GPU from sm_80 on, 64 tokens a chunk; the formulas are those of
// ssd/prefill.
//
// A block takes one or two row tiles of 64 channels, of heads of a group, and one sequence or a segment of it, as in
// ssd/prefill. Each warp keeps 16 channels of the state S in registers from the first chunk to the last. Products are
// transposed (channels x tokens), so that S and x are left operands in registers, and C, B and M^T right ones in shared memory
// (prefill_mma/scan.cuh). The warps multiply B C^T together, once for the heads of the block, and make M of each head from it.
// cp.async loads the next chunk's B and C during this one where shared memory holds two, else after the state's update. Each
// warp loads its own channels of x and z and stores its outputs through x's tile, without synchronising with other warps.
//
// Bound (computed): instruction issue; measured share of the bytes' roof on an H200: 17 % for 1 x 8192 tokens of 128 heads
// (docs/kernels/ssd_prefill.md). A warp takes 1,500 instructions a chunk with 128 states, 180 of them MMAs,
// and registers allow an SM eight warps, or 16 with 64 states.
#pragma once

#include <gdn_cuda/kernels/ssd/prefill_mma/scan.cuh>

namespace gdn_cuda::ssd {

template <SsdMmaConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    prefill_mma(const __grid_constant__ SsdMmaArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<SsdMmaPlan<kConfig>*>(memory);
    if (threadIdx.x == 0) shared.work = work_of_block(args.scan, kConfig.row_tiles);
    __syncthreads();
    if (shared.work.segment >= shared.work.segments) return;
    if (shared.work.place != Place::run) return fill_outputs<kConfig.io, kConfig.threads()>(args.scan, shared.work);
    MmaScan<kConfig>(shared, args).run();
}

}  // namespace gdn_cuda::ssd
