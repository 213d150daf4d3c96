// structured/toeplitz_gko: solves T x = b, T[i, j] = column[i - j] on and below the diagonal, row[j - i] above, in fp64 for
// every dtype. Z_1 T - T Z_(-1) has rank 2, its first row and its last column; with the DFT matrix F and D = diag(e^(-i pi k /
// n)), F Z_1 F^-1 and F D Z_(-1) (F D)^-1 are diagonal, so C = F T (F D)^-1 is Cauchy-like:
//
//     (l_i - m_j) C_ij = left_i . right_j,  l_i = e^(-2 pi i i / n),  m_j = e^(-i pi (2 j + 1) / n)
//
// C is eliminated with partial pivoting on its generators, two values for each row and column (Gohberg, Kailath, Olshevsky).
// The transforms, of any length, are direct sums: each thread advances a twiddle by a constant factor and recomputes it from
// the angle every few terms. T is scaled by a power of two, to keep squares of pivots in range.
//
// No triangular factor is stored: [C b; I 0] is eliminated. The identity's rows, below C, have zero generators and the nodes of
// columns, and after n steps their right-hand sides are -C^-1 b. Step k is the first to touch row k of the identity and the
// last to touch the pivot's row, so one replaces the other: there are n rows at any time, each with a node that is an even (row
// of C) or an odd (row of the identity) number of half steps along the circle, and differences of nodes come from one table:
//
//     1 / (l - m) = conj(l) / 2 (1 - i cot(pi t / 2 n)), a distance of t half steps
//
// A block has a system and a few right-hand sides; generators and right-hand sides are in registers. A step has one barrier:
// each warp writes its best row, with the inverse of its pivot, to shared memory | all threads choose the best | updates.
// Shared buffers are double-buffered by step parity. Every thread updates the next column's generators itself, which saves a
// second barrier.
//
// info: 0; k where pivot k is zero or NaN, without a solution; n + 1 where 1 / (s |T^-1 z|_inf) is below epsilon, with s the
// larger sum of |T|'s first and last column, and z random signs: the probe, an additional last right-hand side. Both
// are lower bounds of ‖T‖_1 and ‖T^-1‖_1, so no regular matrix is reported as singular. Magnitudes of complex values are
// max(|re|, |im|).
//
// Bound: latency of a step, and beyond 256 rows fp64 arithmetic, some 64 multiplies and adds per row. On an H200 0.8 us per
// step at 256 rows and 1.7 at 1024 (docs/benchmarks/structured.md).
#pragma once

#include <gdn_cuda/kernels/structured/toeplitz/gko_plan.cuh>
#include <gdn_cuda/kernels/structured/toeplitz/terms.cuh>

namespace gdn_cuda::structured {

template <ToeplitzGkoConfig kConfig>
struct ToeplitzGko {
    using Shared = ToeplitzGkoSharedPlan<kConfig>;
    using Io = ElementType<kConfig.io>;
    using Stored = typename Shared::Number;
    using Number = ComplexNumber<double>;
    using Terms = ToeplitzTerms<kConfig.io, kConfig.columns>;
    static constexpr int kColumns = kConfig.columns, kNoNode = -1, kTwiddleRun = 16;
    static constexpr unsigned kAll = ~0u;

    const ToeplitzGkoArgs& args;
    Shared& shared;
    unsigned system;
    i64 first_column;
    double scale, norm;  // factor applied to T; norm of T after scaling

    // A slot holds a row of C or of the identity with its right-hand sides, and a column of C.
    struct Slot {
        Number left[2], right[2], rhs[kColumns], back;  // back: the conjugate of the row's node
        int node;
    };
    Slot slots[kConfig.slots];

    __device__ __forceinline__ static Number number(const Stored& x) { return {x.re, x.im}; }
    __device__ __forceinline__ static Stored stored(const Number& x) { return {x.re, x.im}; }
    __device__ __forceinline__ static int slot_at(int s) { return static_cast<int>(threadIdx.x) + s * kConfig.threads; }
    __device__ __forceinline__ Number back_from(int node) const { return unit_at(static_cast<double>(node) / args.n); }
    __device__ __forceinline__ bool has_probe() const { return first_column + kColumns > args.columns; }
    // sum += x * twiddle, without the products with a zero imaginary part of real x.
    template <bool kComplex>
    __device__ __forceinline__ static void add(Number& sum, const Stored& x, const Number& twiddle) {
        if constexpr (kComplex)
            sum = sum + number(x) * twiddle;
        else
            sum = {sum.re + x.re * twiddle.re, sum.im + x.re * twiddle.im};
    }

    // Transforms generators and right-hand sides.
    __device__ __forceinline__ void load_and_transform() {
        const int n = args.n;
        const double before = Terms::scale_before_sums(args, system, shared.reduced[0]);
        const typename Terms::Rights rights{args.right, args.right_column_stride, first_column, before};
        typename Terms::Size size;
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            slots[s] = {};
            slots[s].node = kNoNode;
        }
#pragma unroll 1
        for (int begin = 0; begin < n; begin += kConfig.staged()) {
            const int j = begin + static_cast<int>(threadIdx.x);
            if (static_cast<int>(threadIdx.x) < kConfig.staged() && j < n)
                Terms::load_term(shared.staged[threadIdx.x], args, rights, system, j, size);
            __syncthreads();
            const int end = min(kConfig.staged(), n - begin);
#pragma unroll
            for (int s = 0; s < kConfig.slots; ++s) {
                Slot& slot = slots[s];
                const int i = slot_at(s);
                if (i >= n) continue;
                const Number step = unit_at(-2.0 * i / n);
#pragma unroll 1
                for (int from = 0; from < end; from += kTwiddleRun) {
                    Number twiddle = unit_at(-2.0 * (i * (begin + from) % n) / n);
#pragma unroll 2
                    for (int t = from; t < min(from + kTwiddleRun, end); ++t) {
                        const auto& staged = shared.staged[t];
                        add<Io::kComplex>(slot.left[1], staged.left, twiddle);
                        add<true>(slot.right[0], staged.right, twiddle.conjugate());
#pragma unroll
                        for (int c = 0; c < kColumns; ++c) add<Io::kComplex>(slot.rhs[c], staged.rhs[c], twiddle);
                        twiddle = twiddle * step;
                    }
                }
            }
            __syncthreads();
        }
        size.over_block(shared.reduced);
        scale = size.scale();
        norm = size.scaled_norm();
        const double each = 1 / sqrt(static_cast<double>(n));
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            Slot& slot = slots[s];
            const int i = slot_at(s);
            if (i >= n) continue;
            slot.node = 2 * i;
            slot.back = back_from(slot.node);
            slot.left[0] = {each, 0};
            slot.left[1] = slot.left[1] * (scale * each);
            slot.right[0] = slot.right[0] * (scale * each);
            slot.right[1] = unit_at(static_cast<double>((n - 1) * (2 * i + 1) % (2 * n)) / n) * each;
#pragma unroll
            for (int c = 0; c < kColumns; ++c) slot.rhs[c] = slot.rhs[c] * each;
        }
        for (int t = threadIdx.x; t < 2 * n; t += kConfig.threads) {
            const Number at = unit_at(static_cast<double>(t) / (2 * n));
            shared.tables.cotangents[t] = t == 0 ? 0 : at.re / at.im;  // never read: nodes differ
        }
        for (int k = threadIdx.x; k < n; k += kConfig.threads) shared.tables.entering[k] = stored(back_from(2 * k + 1));
    }

    // The inverse transform of the elimination's result.
    __device__ __forceinline__ void finish(int info) {
        const int n = args.n;
        __syncthreads();
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s)
#pragma unroll
            for (int c = 0; c < kColumns; ++c)
                if (slots[s].node != kNoNode) shared.found[c][slots[s].node / 2] = stored(slots[s].rhs[c]);
        __syncthreads();
        const double each = -1 / sqrt(static_cast<double>(n));
        double largest = 0;
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            const int p = slot_at(s);
            if (p >= n) continue;
            const Number step = unit_at(2.0 * p / n);
            Number sums[kColumns]{};
#pragma unroll 1
            for (int from = 0; from < n; from += kTwiddleRun) {
                Number twiddle = unit_at(static_cast<double>(p * (2 * from + 1) % (2 * n)) / n);
#pragma unroll 2
                for (int m = from; m < min(from + kTwiddleRun, n); ++m) {
#pragma unroll
                    for (int c = 0; c < kColumns; ++c) sums[c] = sums[c] + number(shared.found[c][m]) * twiddle;
                    twiddle = twiddle * step;
                }
            }
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                const Number x = sums[c] * each;
                if (first_column + c == args.columns) largest = max_or_nan(largest, Terms::magnitude(x));
                if (first_column + c >= args.columns) continue;
                using Real = typename Io::Real;
                const double factor = info > 0 ? __longlong_as_double(-1) : scale;
                Io::store(args.out, (static_cast<i64>(system) * n + p) * args.columns + first_column + c,
                          {static_cast<Real>(x.re * factor), static_cast<Real>(x.im * factor)});
            }
        }
        if (!has_probe()) return;
        largest = block_reduce(largest, shared.reduced[0], [](double x, double y) { return max_or_nan(x, y); });
        const bool conditioned = norm * largest * args.epsilon <= 1;  // false for NaN
        if (threadIdx.x == 0) static_cast<int*>(args.info)[system] = info > 0 ? info : conditioned ? 0 : n + 1;
    }

    // Matrix entry from the generators of its row and column.
    __device__ __forceinline__ Number entry(const Number (&left)[2], const Number& back, int node, const Number (&right)[2],
                                            int column) const {
        int distance = 2 * column + 1 - node;
        if (distance < 0) distance += 2 * args.n;
        const Number sum = (left[0] * right[0] + left[1] * right[1]) * back;
        const double cotangent = shared.tables.cotangents[distance];
        return {0.5 * (sum.re + sum.im * cotangent), 0.5 * (sum.im - sum.re * cotangent)};
    }

    // A warp's best candidate for the pivot; rows of the identity are excluded. The key is the upper half of the squared
    // magnitude, which is precise enough to choose a pivot; the low five bits hold the owner, so the first of nearly equal rows
    // wins.
    __device__ __forceinline__ static unsigned key_of(unsigned size, int place) {
        return (size & 0x7fffffe0u) + 32 + static_cast<unsigned>(31 - place);  // NaN may have its sign set
    }
    __device__ __forceinline__ void store_candidate(const Number (&column)[kConfig.slots], int k) {
        const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
        unsigned key = 0;
        int mine = 0;
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            const unsigned slot_key = key_of(static_cast<unsigned>(__double2hiint(column[s].square())), lane);
            if (slots[s].node >= 0 && slots[s].node % 2 == 0 && slot_key > key) {
                key = slot_key;
                mine = s;
            }
        }
        const unsigned best = __reduce_max_sync(kAll, key);
        if (lane == 0) shared.keys[k % 2][warp] = best;
        if (key != best || best == 0) return;
        auto& candidate = shared.pivots[k % 2][warp];
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            if (s != mine) continue;
            const Slot& slot = slots[s];
            const double square = column[s].square();
            candidate.square = square;
            candidate.inverse = stored(column[s].conjugate() * (1.0 / square));
            candidate.back = stored(slot.back);
            candidate.node = slot.node;
            candidate.slot = slot_at(s);
#pragma unroll
            for (int g = 0; g < 2; ++g) candidate.left[g] = stored(slot.left[g]);
#pragma unroll
            for (int c = 0; c < kColumns; ++c) candidate.rhs[c] = stored(slot.rhs[c]);
        }
    }
    __device__ __forceinline__ const typename Shared::Pivot& choose_pivot(int k) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const unsigned key = lane < kConfig.warps() ? shared.keys[k % 2][lane] : 0;  // below 32 if the warp has no candidate
        const unsigned best = __reduce_max_sync(kAll, (key & ~31u) + static_cast<unsigned>(31 - lane));
        return shared.pivots[k % 2][31 - best % 32];
    }

    __device__ __forceinline__ void update(const typename Shared::Pivot& pivot, Number (&column)[kConfig.slots], int k,
                                           Number (&pivot_right)[2]) {
        const Number left[2]{number(pivot.left[0]), number(pivot.left[1])};
        const Number inverse = number(pivot.inverse), back = number(pivot.back);
        const int node = pivot.node, at = pivot.slot;
        const auto updated = [&](Number(&right)[2], int j) {
            const Number factor = entry(left, back, node, right, j) * inverse;
            right[0] = right[0] - pivot_right[0] * factor;
            right[1] = right[1] - pivot_right[1] * factor;
        };
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            Slot& slot = slots[s];
            if (slot.node == kNoNode) continue;
            if (slot_at(s) == at) {  // the identity's row replaces the pivot's
                column[s] = {1, 0};
                slot.node = 2 * k + 1;
                slot.back = number(shared.tables.entering[k]);
#pragma unroll
                for (int g = 0; g < 2; ++g) slot.left[g] = {};
#pragma unroll
                for (int c = 0; c < kColumns; ++c) slot.rhs[c] = {};
            }
            const Number factor = column[s] * inverse;
#pragma unroll
            for (int g = 0; g < 2; ++g) slot.left[g] = slot.left[g] - left[g] * factor;
#pragma unroll
            for (int c = 0; c < kColumns; ++c) slot.rhs[c] = slot.rhs[c] - number(pivot.rhs[c]) * factor;
            if (slot_at(s) > k) updated(slot.right, slot_at(s));
        }
        if (k + 1 < args.n) {
            Number next[2]{number(shared.column[(k + 1) % 2][0]), number(shared.column[(k + 1) % 2][1])};
            updated(next, k + 1);
            pivot_right[0] = next[0];
            pivot_right[1] = next[1];
        }
    }

    // Stores the current right generators of column j, for all threads.
    __device__ __forceinline__ void store_column(int j) {
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s)
            if (slot_at(s) == j) {
                shared.column[j % 2][0] = stored(slots[s].right[0]);
                shared.column[j % 2][1] = stored(slots[s].right[1]);
            }
    }

    __device__ __forceinline__ void run() {
        load_and_transform();
        store_column(0);
        __syncthreads();
        int info = 0;
        Number pivot_right[2]{number(shared.column[0][0]), number(shared.column[0][1])};
#pragma unroll 1
        for (int k = 0; k < args.n; ++k) {
            Number column[kConfig.slots]{};
#pragma unroll
            for (int s = 0; s < kConfig.slots; ++s)
                if (slots[s].node != kNoNode) column[s] = entry(slots[s].left, slots[s].back, slots[s].node, pivot_right, k);
            store_candidate(column, k);
            store_column(k + 1);
            __syncthreads();
            const auto& pivot = choose_pivot(k);
            if (info == 0 && !(pivot.square > 0)) info = k + 1;
            update(pivot, column, k, pivot_right);
        }
        finish(info);
    }
};

template <ToeplitzGkoConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, 1) toeplitz_gko(const __grid_constant__ ToeplitzGkoArgs args) {
    __shared__ ToeplitzGkoSharedPlan<kConfig> shared;
    const auto parts = static_cast<unsigned>(args.columns / kConfig.columns + 1);  // blocks per system
    ToeplitzGko<kConfig> kernel{args, shared, blockIdx.x / parts, static_cast<i64>(blockIdx.x % parts) * kConfig.columns};
    kernel.run();
}

}  // namespace gdn_cuda::structured
