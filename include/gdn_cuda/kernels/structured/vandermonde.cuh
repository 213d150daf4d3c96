// structured/vandermonde: out_l = 2 Re sum over n of v_n e^(x_n l).
//
// With l = a T + b this is a product of two small tables, (v_n e^(x_n a T)) and (e^(x_n b)), with an inner dimension of twice
// the number of poles (real and imaginary parts): few exponentials and a real matrix product. Each table is computed from 16 +
// T / 16 powers with exact phases (phase.cuh). fp32 uses tensor cores, fp64 does not.
//
// Bound: tensor cores, three tf32 products for each of the two real products per pole and output; a scheduler needs 8 clocks
// for the 1024 products of an mma.sync. For 32 poles and T = 128 a warp has 2400 instructions: 384 mma.sync, 512 additions of
// their results, 560 for tables and 400 for powers. On an H200 the kernel reaches half of that rate, since both blocks of an SM
// compute their powers at nearly the same time.
#pragma once

#include <gdn_cuda/kernels/structured/vandermonde/fp32.cuh>
#include <gdn_cuda/kernels/structured/vandermonde/fp64.cuh>

namespace gdn_cuda::structured {

template <VandermondeConfig kConfig>
struct Vandermonde {
    using Table = VandermondePowers<kConfig>;
    using Io = typename Table::Io;
    using Real = typename Table::Real;
    using Number = typename Table::Number;

    const VandermondeArgs& args;
    VandermondeSharedPlan<kConfig>& shared;

    // Loads exponents and residues; residues past the last pole are 0.
    __device__ __forceinline__ void load_poles(int first_pole) {
        if (threadIdx.x >= kConfig.poles) return;
        i64 residues, exponents;
        set_row_offsets(args, place().row, RowOffset{args.residues, residues}, RowOffset{args.exponents, exponents});
        Table::load_exponents(shared.roots, args.exponents, exponents, first_pole, args.pole_count);
        const unsigned mine = opaque(threadIdx.x);
        const int pole = first_pole + static_cast<int>(mine);
        Number v{};
        if (pole < args.pole_count) v = Io::load(args.residues.data, residues + pole * args.residues.step);
        Table::put(shared.residues[mine], {v.re, v.im});
    }
    // The block's row and square of outputs, recomputed at each use since no registers are left to hold them.
    struct Place {
        unsigned row, square;
    };
    __device__ __forceinline__ Place place() const {
        const auto squares = static_cast<unsigned>((args.steps + kConfig.square() - 1) / kConfig.square()),
                   block = opaque(blockIdx.x), row = block / squares;
        return {row, block - row * squares};
    }
    __device__ __forceinline__ void run() {
        using Products = VandermondeProducts<kConfig>;
        Products products{shared};
#pragma unroll 1
        for (int first = 0; first < Products::padded(args.pole_count); first += Products::kAtOnce) {
            const int among = first % kConfig.poles,
                      left = args.pole_count - first;  // poles that have powers
            if (Products::kAtOnce == kConfig.poles || among == 0) {
                load_poles(first);
                __syncthreads();
                Table::make_roots(shared.roots, min(Products::padded(left), kConfig.poles),
                                  static_cast<i64>(place().square) * kConfig.side);
                __syncthreads();
            }
            products.add(among, left);
        }
        const auto [row, square] = place();
        const i64 done = static_cast<i64>(square) * kConfig.square();
        products.store(static_cast<Real*>(args.out) + row * args.steps + done, args.steps - done);
    }
};

template <VandermondeConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.least_blocks())
    vandermonde(const __grid_constant__ VandermondeArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    Vandermonde<kConfig>{args, *reinterpret_cast<VandermondeSharedPlan<kConfig>*>(memory)}.run();
}

}  // namespace gdn_cuda::structured
