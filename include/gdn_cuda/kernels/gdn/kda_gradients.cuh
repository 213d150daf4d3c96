// gdn/kda_gradients: gradients of queries, keys, betas and gates of chunks of 64 tokens of Kimi Delta Attention, on Hopper.
// What crosses chunks comes from the chains (backward/handover.cuh), so chunks are independent. D_ij: the product of decays of
// tokens j < s <= i, of each channel; gamma_i from the chunk's start, kappa_j to its end, Gamma of all; queries and keys are
// normalised.
//
//     dP_ij = scale beta_j dO_i.R_j, i >= j        U_ij = -beta_j dV_i.R_j, i > j        dbeta_i = dV_i.R_i / beta_i
//     dq_i = scale gamma_i (dO S)_i + sum of dP_ij k_j D_ij over j
//     dk_i = kappa_i beta_i (R E)_i - gamma_i (dV S)_i + sum of U_ij k_j D_ij over j + sum of (dP_ji q_j + U_ji k_j) D_ji
//     dg_t = what of this carries a decay across token t, times q_i, k_i or k_j: sums over i >= t and j < t; + Gamma sum of E S
//
// A block of 256 threads takes 64 channels of a chunk of a head, so that two share a multiprocessor: phases of one hide those
// of the other. Keys of more than 64 channels have a cluster of two blocks, which exchange sums over channels for the norms;
// the first one stores what is not by channel. A warp has an eighth of the tokens, a thread two channels of these:
//
//     loads by TMA; decays -> products over the values, by wgmma (value_products.cuh)
//     -> operands, and what crosses eighths (eighth.cuh) -> pairs of tokens of different eighths by warp MMAs (pairs.cuh)
//     -> pairs within an eighth and sums by channel, in fp32 -> norms, gates, stores
//
// A pair's decay is a product of decays up to and from borders of eighths, all at most 1 for any gates. Pairs within an eighth
// are summed by channel in fp32 (kda_backward/within.cuh). Every term of dg carries the decay across its token, so that a reset
// has a gradient of exactly 0, and nothing cancels.
//
// dP and U are used in two 16-bit parts; where entries of T cancel so are R, and keys in dP k and U k.
//
// Bound: instructions and their latency (docs/kernels/kda_backward.md has them by phase): on an H200 17 us a chunk and
// multiprocessor (4096 chunks, gates as initialised; 9e52f521). It moves 210 KB a chunk, and 48 KB twice.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/results.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/eighth.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/loads.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/pairs.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/value_products.cuh>

namespace gdn_cuda::gdn {

template <DType kIo>
struct KdaGradientsBlock {
    using Io = Storage<kIo>;
    static constexpr int kThreads = KdaGradientsConfig::threads();

    KdaGradientsPlan& shared;
    const KdaGradientsCall& args;
    const KdaGradientsArgs& all;

    __device__ __forceinline__ static int head() { return static_cast<int>(blockIdx.y); }
    __device__ __forceinline__ static int own_thread() { return opaque(static_cast<int>(threadIdx.x)); }

    // By one thread.
    __device__ __forceinline__ void find_offsets() const {
        const KdaPlace place = shared.place;
        const int channel = kda_gradients_place(place, args.call).channel();
        const Scalars& gates = args.call.gate;
        const i64 token = place.sequence * args.scalars_sequence + place.first * args.scalars_token + head();
        shared.offsets = {.gates = gate_bytes(
                              scalar_offset(gates, place.sequence, place.first, head()) + channel * args.call.channels.channel,
                              gates.values.type),
                          .gate_gradient = gate_bytes(token * args.call.dk + channel, args.gate_gradient.type)};
    }
    __device__ __forceinline__ void run() const {
        KdaEighth<kIo> eighth(shared, args);
        eighth.find_decays();
        KdaValueProducts<kIo> products(shared, args);
        products.run();
        if (threadIdx.x == 0 && shared.factors.cancels != 0) [[unlikely]]
            start_kda_row_loads(shared, all, kda_gradients_place(shared.place, args.call));
        __syncwarp();
        eighth.find_place();
        __syncthreads();
        eighth.load_rows();
        eighth.split();
        __syncthreads();
        KdaEighthPairs<kIo>(shared).add();
        eighth.find_place();
        if (__shfl_sync(0xffffffffu, shared.factors.cancels, 0) != 0) [[unlikely]] {  // warp-uniform for the compiler
            __syncthreads();
            eighth.store_key_residuals();
            __syncthreads();
            KdaEighthPairs<kIo>(shared).add_residuals();
        }
        const KdaGatePairs gates = eighth.gates();
        if (KdaGradientsConfig::blocks(args.call.dk) > 1) cute::cluster_arrive_relaxed();
        __syncthreads();
        eighth.keep_gates(gates);
        eighth.finish();
        if (kda_gradients_place(shared.place, args.call).part == 0) store_beta_gradients();
        const bool whole = shared.place.tokens == kChunk;
        if (whole) cute::tma_store_fence();
        __syncthreads();
        if (whole) [[likely]] {
            if (threadIdx.x == 0) store_whole_rows();
        } else {
            store_rows(args.query_gradient, shared.rows.query);
            store_rows(args.key_gradient, shared.rows.key);
        }
        store_sums();
        if (whole && threadIdx.x == 0) cute::tma_store_wait<0>();
    }

  private:
    // By the thread of a token: its value's gradient too, where beta is 0.
    __device__ __forceinline__ void store_beta_gradients() const {
        const int token = own_thread();
        const KdaPlace& place = shared.place;
        if (token >= place.tokens) return;
        const float beta = shared.factors.beta[token];
        if (args.beta_gradient.data != nullptr)
            store_float(args.beta_gradient,
                        place.sequence * args.scalars_sequence + (place.first + token) * args.scalars_token + head(),
                        beta_gradient(args.call, place, token, head(), shared.own[token] / beta));
        if (beta != least_beta(kIo)) [[likely]]
            return;
        Io* const to = static_cast<Io*>(args.value_gradient.data) + offset_in(args.value_gradient, place) +
                       token * args.value_gradient.token;
        for (int column = 0; column < args.call.dv; column += 8) *reinterpret_cast<uint4*>(to + column) = {};
    }
    __device__ __forceinline__ static i64 offset_in(const Rows& rows, const KdaPlace& place) {
        return place.sequence * rows.batch + place.first * rows.token + head() * rows.head;
    }
    // By one thread.
    __device__ __forceinline__ void store_whole_rows() const {
        const KdaGradientsPlace place = kda_gradients_place(shared.place, args.call);
        const TileAt at{place.channel(), place.head, static_cast<int>(place.tokens.first),
                        static_cast<int>(place.tokens.sequence)};
        tma_store(all.query_gradient, at, shared.rows.query.bytes);
        tma_store(all.key_gradient, at, shared.rows.key.bytes);
        cute::tma_store_arrive();
    }
    __device__ __forceinline__ void store_rows(const Rows& rows, const SwizzledTile& from) const {
        constexpr int kVectors = KdaGradientsPlan::kChannels / 8, kStep = kThreads / kVectors;
        const unsigned thread = own_thread(), vector = thread % kVectors;
        const int channel = kda_gradients_place(shared.place, args.call).channel() + 8 * static_cast<int>(vector);
        if (channel >= args.call.dk) return;
        Io* const to = static_cast<Io*>(rows.data) + offset_in(rows, shared.place) + channel;
#pragma unroll
        for (int i = 0; i < kChunk; i += kStep) {
            const int token = i + static_cast<int>(thread / kVectors);
            if (token < shared.place.tokens)
                *reinterpret_cast<uint4*>(to + token * rows.token) =
                    load_shared(row_vector(tile_row(from.bytes, token), vector));
        }
    }
    // What eighths have left in place of their first gates.
    __device__ __forceinline__ void store_sums() const {
        const KdaGradientsPlace place = kda_gradients_place(shared.place, args.call);
        const int which = own_thread() / KdaGradientsPlan::kChannels, own = own_thread() % KdaGradientsPlan::kChannels,
                  channel = place.channel() + own;
        if (args.sums == nullptr || args.gate_gradient.data == nullptr || which >= 2 || channel >= args.call.dk) return;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < KdaGradientsPlan::kEighths; ++i)
            sum += shared.products.gates[KdaGradientsConfig::kTokens * i + which][own];
        args.sums[which * args.sums_which + place.chunk * args.sums_row + i64{head()} * args.call.dk + channel] = sum;
    }
};

template <KdaGradientsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 2) kda_gradients(const __grid_constant__ KdaGradientsArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<KdaGradientsPlan*>(memory);
    const GdnCall& call = args.call.call;
    if (threadIdx.x == 0) {
        const ChunkPlace found = chunk_at(call.cu_seqlens, call.sequences, call.tokens, kda_gradients_place({}, call).chunk);
        shared.place = {.sequence = call.cu_seqlens.data != nullptr ? 0 : found.sequence,
                        .first = found.start + found.first,
                        .tokens = found.sequence < 0 ? 0 : min(kChunk, found.length - found.first)};
        barrier(shared.tokens_full).init(1);
        barrier(shared.states_full).init(1);
        barrier(shared.rows_full).init(1);
        for (auto& full : shared.dots_full) {
            barrier(full).init(1);
            barrier(full).arrive_and_expect_tx(sizeof shared.other_dots[0]);
        }
        cutlass::arch::fence_barrier_init();
        KdaGradientsBlock<kConfig.io>{shared, args.call, args}.find_offsets();
    }
    __syncthreads();
    if (shared.place.tokens == 0) return;  // the index is unused
    // The last warp: others start their loads of gates in the meantime.
    if (threadIdx.x == kConfig.threads() - 32) start_kda_gradient_loads(shared, args, kda_gradients_place(shared.place, call));
    __syncwarp();
    KdaGradientsBlock<kConfig.io>{shared, args.call, args}.run();
}

}  // namespace gdn_cuda::gdn
