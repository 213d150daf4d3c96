// structured/vandermonde: out_l = 2 Re sum over n of v_n e^(x_n l).
//
// With l = a T + b this is a product of two small tables, (v_n e^(x_n a T)) and (e^(x_n b)), over twice as many columns as
// there are poles: few exponentials, and a matrix product of real numbers. Tables are made from 16 + T / 16 powers each, with
// exact phases (phase.cuh). fp32 uses tensor cores, fp64 does not.
//
// Bound: tensor cores, three tf32 products for each of two real ones per pole and output: 8 clocks of a scheduler for 1024
// products with mma.sync. For 32 poles and T = 128, a warp's 2400 instructions are 384 of those, 512 additions of their
// results, 560 for tables and 400 for powers. On an H200 half of that rate: both blocks of an SM make their powers at much the
// same time.
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

    // Loads exponents and residues. Residues past the last are 0.
    __device__ __forceinline__ void load_poles(int first_pole) {
        if (threadIdx.x >= kConfig.poles) return;
        i64 residues, exponents;
        begin_line(args, place().row, LineBegin{args.residues, residues}, LineBegin{args.exponents, exponents});
        Table::load_exponents(shared.roots, args.exponents, exponents, first_pole, args.pole_count);
        const unsigned mine = opaque(threadIdx.x);
        const int pole = first_pole + static_cast<int>(mine);
        Number v{};
        if (pole < args.pole_count) v = Io::load(args.residues.data, residues + pole * args.residues.step);
        Table::put(shared.residues[mine], {v.re, v.im});
    }
    // The block's row and square of outputs, recomputed where needed: registers are full.
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
                      left = args.pole_count - first;  // among those with powers
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
