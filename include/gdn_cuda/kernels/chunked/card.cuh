// Experiment of branch card: parts left out (wrong results), and clocks of roles, chosen by -DCARD_VARIANT.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

#ifndef CARD_VARIANT
#define CARD_VARIANT 8
#endif

#ifndef CARD_AHEAD
#define CARD_AHEAD 3
#endif

namespace gdn_cuda::gdn {

enum Card : int {
    kCardClocks = 1,
    kCardNoInverse = 2,
    kCardNoScores = 4,
    kCardHalf = 8,
    kCardNoFence = 16,
    kCardNoDown = 32,
    kCardNoDiagonal = 64,
    kCardNoStore = 128,
    kCardNoTx = 256,
    kCardNoDecay = 512,
    kCardNoGram = 1024,
    kCardNoQk = 2048,
    kCardBlockDecay = 4096,
    kCardEarly = 8192,
    kCardFactorsFirst = 16384,  // scores: exponents before q k^T
    kCardAhead = 32768,  // inverse: factors of decay while k k^T runs
};
constexpr bool card(int bit) { return (CARD_VARIANT & bit) != 0; }

struct CardClocks {
    static constexpr int kRows = 6, kPhases = 12;
    unsigned sum[kRows][kPhases];
};

template <bool kKept>
struct CardClocksIf {};
template <>
struct CardClocksIf<true> : CardClocks {};

}  // namespace gdn_cuda::gdn

#ifdef __CUDACC__
namespace gdn_cuda::gdn {
struct CardStamp {
    unsigned last;
    __device__ __forceinline__ static unsigned now() {
        unsigned x = 0;
#if CARD_VARIANT & 1
        asm volatile("mov.u32 %0, %%clock;" : "=r"(x)::"memory");
#endif
        return x;
    }
    __device__ __forceinline__ CardStamp() : last(card(kCardClocks) ? now() : 0) {}
    template <class Shared>
    __device__ __forceinline__ void operator()(Shared& shared, int row, int phase) {
        if constexpr (card(kCardClocks) && requires { shared.clocks.sum; }) {
            if (row < 0) return;
            const unsigned at = now();
            if (threadIdx.x % 32 == 0) shared.clocks.sum[row][phase] += at - last;
            last = at;
        }
    }
    template <class Shared, class Args>
    __device__ __forceinline__ static void write(Shared& shared, const Args& args, int row) {
        if constexpr (card(kCardClocks) && requires { shared.clocks.sum; })
            if (row >= 0 && threadIdx.x % 32 == 0 && blockIdx.x + blockIdx.y + blockIdx.z == 0) {
                auto* to = reinterpret_cast<unsigned*>(static_cast<unsigned short*>(const_cast<void*>(args.call.output.data)) +
                                                       row * args.call.output.token);
                for (int i = 0; i < CardClocks::kPhases; ++i) to[i] = shared.clocks.sum[row][i];
            }
    }
    template <class Shared>
    __device__ __forceinline__ static void clear(Shared& shared, int row) {
        if constexpr (card(kCardClocks) && requires { shared.clocks.sum; })
            if (row >= 0 && threadIdx.x % 32 == 0)
                for (unsigned& x : shared.clocks.sum[row]) x = 0;
    }
};
}  // namespace gdn_cuda::gdn
#endif
