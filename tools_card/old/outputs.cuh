// A chunk's outputs of 64 value rows: their tile in shared memory, and its store.
#pragma once

#include <gdn_cuda/kernels/chunked/state_owner.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>

namespace gdn_cuda::gdn {

// A fragment of 64 rows x tokens as a tile of tokens x rows.
template <DType kIo>
__device__ __forceinline__ void write_tokens_tile(SwizzledTile& tile, const TokenFragment& x, const Lane& lane) {
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step)
        stmatrix_x4_trans(lane.matrix_row(tile) + step * kMnMajorStep, pack<kIo>(x[8 * step], x[8 * step + 1]),
                          pack<kIo>(x[8 * step + 2], x[8 * step + 3]), pack<kIo>(x[8 * step + 4], x[8 * step + 5]),
                          pack<kIo>(x[8 * step + 6], x[8 * step + 7]));
}
template <class Owner>
__device__ __forceinline__ void write_output_tile(const Owner& own, const TokenFragment& output) {
    write_tokens_tile<Owner::kIo>(own.shared.output[own.index()], output, own);
}

// By one thread; `rows`: the value warpgroup whose rows they are.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void start_tile_store(const ChunkedArgs& args, const ChunkedWork& work, int chunk, int rows,
                                                 const SwizzledTile& tile) {
    const int token = first_token<kConfig>(work.tokens, chunk), batch = batch_of(args, work);
    tma_store(args.output, {work.first_row + rows * kValueRows, work.head, token, batch}, tile.bytes);
    cute::tma_store_arrive();
}
// By TMA, unless the tile would overwrite the next sequence's outputs.
template <class Owner>
__device__ __forceinline__ void store_output_tile(const Owner& own, int chunk, bool by_tma) {
    SwizzledTile& tile = own.shared.output[own.index()];
    cutlass::arch::fence_view_async_shared();
    own.warpgroup_sync();
    if (own.thread == 0 && by_tma) start_tile_store<Owner::kConfig>(own.args, own.work, chunk, own.index(), tile);
}
template <class Owner>
__device__ __forceinline__ void store_output(const Owner& own, const TokenFragment& output, int chunk, bool by_tma) {
    if (own.thread == 0) cute::tma_store_wait<0>();
    own.warpgroup_sync();
    write_output_tile(own, output);
    store_output_tile(own, chunk, by_tma);
}
template <class Owner>
__device__ __forceinline__ void store_tile_without_tma(const Owner& own, int chunk, const SwizzledTile& tile) {
    const GdnCall& call = own.args.call;
    const ChunkedWork& work = own.work;
    const int first_row = work.first_row + own.index() * kValueRows;
    using Io = Storage<Owner::kIo>;
    Io* to = static_cast<Io*>(call.output.data) +
             (work.tokens.start + in_time<Owner::kConfig>(work.tokens, chunk) * kChunk) * call.output.token +
             work.head * call.output.head + first_row;
#pragma unroll 1
    for (int i = own.thread; i < tokens_in<Owner::kConfig>(work.tokens, chunk) * 8; i += kWarpgroup)
        if (first_row + i % 8 * 8 < call.outputs)
            *reinterpret_cast<uint4*>(to + i / 8 * call.output.token + i % 8 * 8) =
                load_shared(row_vector(tile_row(tile.bytes, i / 8), i % 8));
}
template <class Owner>
__device__ __forceinline__ void store_output_without_tma(const Owner& own, int chunk) {
    store_tile_without_tma(own, chunk, own.shared.output[own.index()]);
}

}  // namespace gdn_cuda::gdn
