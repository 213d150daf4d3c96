// structured/toeplitz_gko: solves C x = b with (l_i - m_j) C_ij = left_i . right_j, l_i = e^(-2 pi i i / n) and
// m_j = e^(-i pi (2 j + 1) / n): what Fourier transforms make of a Toeplitz matrix. Gaussian elimination with partial pivoting
// on the two numbers a row and a column that stand for the matrix (Gohberg, Kailath, Olshevsky), in fp64 whatever the caller
// has.
//
// No factor is stored. What is eliminated is [C b; I 0]: below C stands the identity, whose rows have generators of zero and
// the nodes of columns, and after n steps -C^-1 b stands beside them. Step k is the first to touch row k of the identity, and
// the last to touch its pivot's row, so that takes the other's place: there are n rows at any time, each with a node that is an
// even (row of C) or an odd number of half steps along the circle, and differences of nodes come from one table:
//
//     1 / (l - m) = conj(l) / 2 (1 - i cot(pi t / 2 n)), t half steps apart
//
// A block has a system and a few right-hand sides; generators and right-hand sides are in registers. A step has one barrier:
// the best row of each warp is told whole, with its pivot's inverse | all threads choose one of those | updates. What is told
// is there twice, for even and odd steps. The next column's generators are updated by every thread for itself, or there would
// be a second barrier.
//
// Bound: latency of a step, and beyond 256 rows fp64 arithmetic, some 64 products and sums a row.
#pragma once

#include <gdn_cuda/kernels/common/complex.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_gko_plan.cuh>

namespace gdn_cuda::structured {

template <ToeplitzGkoConfig kConfig>
struct ToeplitzGko {
    using Shared = ToeplitzGkoSharedPlan<kConfig>;
    using Stored = typename Shared::Number;
    using Number = ComplexNumber<double>;
    static constexpr int kColumns = kConfig.columns, kNoNode = -1;
    static constexpr unsigned kAll = ~0u;

    const ToeplitzGkoArgs& args;
    Shared& shared;
    i64 system, first_column;

    // Of a slot: a row of C or of the identity with its right-hand sides, and a column of C.
    struct Slot {
        Number left[2], right[2], numbers[kColumns], back;  // back: the conjugate of the row's node
        int node;
    };
    Slot slots[kConfig.slots];

    __device__ __forceinline__ static Number number(const Stored& x) { return {x.re, x.im}; }
    __device__ __forceinline__ static Stored stored(const Number& x) { return {x.re, x.im}; }
    __device__ __forceinline__ static int slot_at(int s) { return static_cast<int>(threadIdx.x) + s * kConfig.threads; }
    __device__ __forceinline__ Number back_from(int node) const { return unit_at(static_cast<double>(node) / args.n); }
    __device__ __forceinline__ Number given(const void* from, i64 row, int i) const {
        return static_cast<const Number*>(from)[row * args.n + i];
    }

    __device__ __forceinline__ void bring() {
        for (int t = threadIdx.x; t < 2 * args.n; t += kConfig.threads) {
            const Number at = unit_at(static_cast<double>(t) / (2 * args.n));
            shared.cotangents[t] = t == 0 ? 0 : at.re / at.im;  // no difference of nodes is zero
        }
        for (int k = threadIdx.x; k < args.n; k += kConfig.threads) shared.entering[k] = stored(back_from(2 * k + 1));
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            Slot& slot = slots[s];
            const int i = slot_at(s);
            slot = {};
            slot.node = kNoNode;
            if (i >= args.n) continue;
            slot.node = 2 * i;
            slot.back = back_from(slot.node);
#pragma unroll
            for (int g = 0; g < 2; ++g) {
                slot.left[g] = given(args.left, 2 * system + g, i);
                slot.right[g] = given(args.right, 2 * system + g, i);
            }
#pragma unroll
            for (int c = 0; c < kColumns; ++c)
                if (first_column + c < args.columns)
                    slot.numbers[c] = given(args.numbers, system * args.columns + first_column + c, i);
        }
    }

    // Of a row and a column, by their generators.
    __device__ __forceinline__ Number entry(const Number (&left)[2], const Number& back, int node, const Number (&right)[2],
                                            int column) const {
        int apart = 2 * column + 1 - node;
        if (apart < 0) apart += 2 * args.n;
        const Number sum = (left[0] * right[0] + left[1] * right[1]) * back;
        const double cotangent = shared.cotangents[apart];
        return {0.5 * (sum.re + sum.im * cotangent), 0.5 * (sum.im - sum.re * cotangent)};
    }

    // The best row of a warp to be the pivot's; rows of the identity are none. A key is the upper half of the square of a
    // pivot's size, which orders them well enough, and in its last bits whose it is: of about equal ones the first.
    __device__ __forceinline__ static unsigned key_of(unsigned size, int place) {
        return (size & 0x7fffffe0u) + 32 + static_cast<unsigned>(31 - place);  // NaN has a sign
    }
    __device__ __forceinline__ void propose(const Number (&column)[kConfig.slots], int k) {
        const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
        unsigned key = 0;
        int mine = 0;
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            const unsigned of_slot = key_of(static_cast<unsigned>(__double2hiint(column[s].square())), lane);
            if (slots[s].node >= 0 && slots[s].node % 2 == 0 && of_slot > key) {
                key = of_slot;
                mine = s;
            }
        }
        const unsigned best = __reduce_max_sync(kAll, key);
        if (lane == 0) shared.keys[k % 2][warp] = best;
        if (key != best || best == 0) return;
        auto& told = shared.pivots[k % 2][warp];
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            if (s != mine) continue;
            const Slot& slot = slots[s];
            const double square = column[s].square();
            told.square = square;
            told.inverse = stored(column[s].conjugate() * (1.0 / square));
            told.back = stored(slot.back);
            told.node = slot.node;
            told.slot = slot_at(s);
#pragma unroll
            for (int g = 0; g < 2; ++g) told.left[g] = stored(slot.left[g]);
#pragma unroll
            for (int c = 0; c < kColumns; ++c) told.numbers[c] = stored(slot.numbers[c]);
        }
    }
    __device__ __forceinline__ const typename Shared::Pivot& chosen(int k) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const unsigned key = lane < kConfig.warps() ? shared.keys[k % 2][lane] : 0;  // below 32 where there is none
        const unsigned best = __reduce_max_sync(kAll, (key & ~31u) + static_cast<unsigned>(31 - lane));
        return shared.pivots[k % 2][31 - best % 32];
    }

    __device__ __forceinline__ void update(const typename Shared::Pivot& pivot, Number (&column)[kConfig.slots], int k,
                                           Number (&right_of_k)[2]) {
        const Number left[2]{number(pivot.left[0]), number(pivot.left[1])};
        const Number inverse = number(pivot.inverse), back = number(pivot.back);
        const int node = pivot.node, at = pivot.slot;
        const auto updated = [&](Number(&right)[2], int j) {
            const Number share = entry(left, back, node, right, j) * inverse;
            right[0] = right[0] - right_of_k[0] * share;
            right[1] = right[1] - right_of_k[1] * share;
        };
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            Slot& slot = slots[s];
            if (slot.node == kNoNode) continue;
            if (slot_at(s) == at) {  // the row of the identity takes the pivot's place
                column[s] = {1, 0};
                slot.node = 2 * k + 1;
                slot.back = number(shared.entering[k]);
#pragma unroll
                for (int g = 0; g < 2; ++g) slot.left[g] = {};
#pragma unroll
                for (int c = 0; c < kColumns; ++c) slot.numbers[c] = {};
            }
            const Number factor = column[s] * inverse;
#pragma unroll
            for (int g = 0; g < 2; ++g) slot.left[g] = slot.left[g] - left[g] * factor;
#pragma unroll
            for (int c = 0; c < kColumns; ++c) slot.numbers[c] = slot.numbers[c] - number(pivot.numbers[c]) * factor;
            if (slot_at(s) > k) updated(slot.right, slot_at(s));
        }
        if (k + 1 < args.n) {
            Number next[2]{number(shared.column[(k + 1) % 2][0]), number(shared.column[(k + 1) % 2][1])};
            updated(next, k + 1);
            right_of_k[0] = next[0];
            right_of_k[1] = next[1];
        }
    }

    // For all threads: the right generators of column j, as they are now.
    __device__ __forceinline__ void tell_column(int j) {
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s)
            if (slot_at(s) == j) {
                shared.column[j % 2][0] = stored(slots[s].right[0]);
                shared.column[j % 2][1] = stored(slots[s].right[1]);
            }
    }

    __device__ __forceinline__ void run() {
        bring();
        tell_column(0);
        __syncthreads();
        int info = 0;
        Number right_of_k[2]{number(shared.column[0][0]), number(shared.column[0][1])};
#pragma unroll 1
        for (int k = 0; k < args.n; ++k) {
            Number column[kConfig.slots]{};
#pragma unroll
            for (int s = 0; s < kConfig.slots; ++s)
                if (slots[s].node != kNoNode) column[s] = entry(slots[s].left, slots[s].back, slots[s].node, right_of_k, k);
            propose(column, k);
            tell_column(k + 1);
            __syncthreads();
            const auto& pivot = chosen(k);
            if (info == 0 && !(pivot.square > 0)) info = k + 1;
            update(pivot, column, k, right_of_k);
        }
        if (threadIdx.x == 0 && first_column == 0) static_cast<int*>(args.info)[system] = info;
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s)
#pragma unroll
            for (int c = 0; c < kColumns; ++c)
                if (slots[s].node != kNoNode && first_column + c < args.columns)
                    static_cast<Number*>(args.out)[(system * args.columns + first_column + c) * args.n + slots[s].node / 2] =
                        slots[s].numbers[c] * -1.0;
    }
};

template <ToeplitzGkoConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) toeplitz_gko(const __grid_constant__ ToeplitzGkoArgs args) {
    __shared__ ToeplitzGkoSharedPlan<kConfig> shared;
    const auto parts = static_cast<unsigned>((args.columns + kConfig.columns - 1) / kConfig.columns);
    ToeplitzGko<kConfig> kernel{args, shared, blockIdx.x / parts, static_cast<i64>(blockIdx.x % parts) * kConfig.columns};
    kernel.run();
}

}  // namespace gdn_cuda::structured
