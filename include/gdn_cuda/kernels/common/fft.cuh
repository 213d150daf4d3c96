// FFTs of 2^a complex values by one block, with eight or sixteen values per thread in registers.
//
// Radix-8 passes, and a last one of radix 2, 4 or 8. Forward transforms leave the values in the order of the last pass and
// inverse transforms start from that order, so a convolution multiplies registers and never reorders. Passes exchange values
// through shared memory; each thread writes only where it has just read, so a pass costs one barrier. An inverse transform may
// follow a forward one, or the reverse, without another barrier; two forward or two inverse transforms need one between them.
// Forward transforms of several arrays run together, with the same barriers and twiddles.
//
// Twiddle powers 1, 2 and 4 are e^(i pi x) of exact x, computed where needed or read from a table; each other power is a
// product of two of those.
#pragma once

#include <gdn_cuda/kernels/common/complex.cuh>
#include <gdn_cuda/kernels/common/fft_layout.cuh>
#include <gdn_cuda/kernels/common/named_barrier.cuh>

namespace gdn_cuda {

// 2^-log, built from its bits: a division would be a function call.
template <class Real>
__device__ __forceinline__ Real half_to_the(int log) {
    if constexpr (sizeof(Real) == sizeof(float))
        return __int_as_float((127 - log) << 23);
    else
        return __longlong_as_double(static_cast<i64>(1023 - log) << 52);
}

template <bool kInverse, class Real>
__device__ __forceinline__ ComplexNumber<Real> times_i_of(const ComplexNumber<Real>& x) {
    return kInverse ? ComplexNumber<Real>{-x.im, x.re} : ComplexNumber<Real>{x.im, -x.re};
}

template <bool kInverse, class Real>
__device__ __forceinline__ void transform2(ComplexNumber<Real>& a, ComplexNumber<Real>& b) {
    const ComplexNumber<Real> sum = a + b;
    b = a - b;
    a = sum;
}
template <bool kInverse, class Real>
__device__ __forceinline__ void transform4(ComplexNumber<Real>& a, ComplexNumber<Real>& b, ComplexNumber<Real>& c,
                                           ComplexNumber<Real>& d) {
    transform2<kInverse>(a, c);
    transform2<kInverse>(b, d);
    d = times_i_of<kInverse>(d);
    const ComplexNumber<Real> even = a + b, half = a - b, first = c + d, third = c - d;
    a = even;
    b = first;
    c = half;
    d = third;
}
template <bool kInverse, class Real>
__device__ __forceinline__ void transform8(ComplexNumber<Real> (&x)[kFftEach]) {
    constexpr Real kHalf = static_cast<Real>(0.70710678118654752440);
#pragma unroll
    for (int i = 0; i < 4; ++i) transform2<kInverse>(x[i], x[i + 4]);
    const ComplexNumber<Real> turned1 = times_i_of<kInverse>(x[5]), turned3 = times_i_of<kInverse>(x[7]);
    x[5] = (x[5] + turned1) * kHalf;
    x[6] = times_i_of<kInverse>(x[6]);
    x[7] = (turned3 - x[7]) * kHalf;
    transform4<kInverse>(x[0], x[1], x[2], x[3]);
    transform4<kInverse>(x[4], x[5], x[6], x[7]);
    const ComplexNumber<Real> one = x[4], two = x[1], three = x[5], four = x[2], five = x[6], six = x[3];
    x[1] = one;
    x[2] = two;
    x[3] = three;
    x[4] = four;
    x[5] = five;
    x[6] = six;
}

// e^(-2 pi i place / 2^log) and its second and fourth powers.
template <class Real>
struct TwiddlePowers {
    ComplexNumber<Real> one, two, four;
};
template <class Real>
struct ExactTwiddles {
    __device__ __forceinline__ static TwiddlePowers<Real> at(int log, int place) {
        const Real half_turns = static_cast<Real>(-2 * place) * half_to_the<Real>(log);
        return {unit_at(half_turns), unit_at(2 * half_turns), unit_at(4 * half_turns)};
    }
};
// Twiddles in a shared-memory table, computed while loads are in flight. kFirst: the table includes those of the first pass.
template <class Real, bool kFirst>
struct KeptTwiddles {
    TwiddlePowers<Real>* table;  // fft_twiddles(size), or of size / 8
    int log_most;                // log2 of size, or of size / 8

    __device__ __forceinline__ TwiddlePowers<Real>& of(int log, int place) const { return table[(1 << (log - 3)) + place]; }
    // Called by all threads that hold values. In the first forward pass each thread reads only entries that it wrote itself,
    // and that pass ends in a barrier.
    __device__ __forceinline__ void make() const {
        for (int log = log_most; log > 3; log -= 3)
            if (const int place = threadIdx.x; place < 1 << (log - 3)) of(log, place) = ExactTwiddles<Real>::at(log, place);
    }
    __device__ __forceinline__ TwiddlePowers<Real> at(int log, int place) const {
        if (!kFirst && log > log_most) return ExactTwiddles<Real>::at(log, place);
        return of(log, place);
    }
};

// A thread holds kGroups groups of eight values: groups threadIdx.x + g kThreads.
//
// With kSeparateParts only the first pass uses a block barrier. After it the parts of the transform are independent: each
// synchronises its own threads by a named barrier, or by __syncwarp (at most 256 values), so that some compute while others
// wait for shared memory.
template <class Real, int kThreads, int kGroups, class Twiddles = ExactTwiddles<Real>, bool kSeparateParts = false>
struct BlockFft {
    using Number = ComplexNumber<Real>;
    using Group = Number[kFftEach];
    using Values = Group[kGroups];

    Number* exchange;  // shared memory: fft_padded(size) values per array transformed at once
    int log_size;      // above 3
    Twiddles twiddles{};

    __device__ __forceinline__ int size() const { return 1 << log_size; }
    __device__ __forceinline__ static int butterfly(int group) { return static_cast<int>(threadIdx.x) + group * kThreads; }
    // Groups past the last value only take part in barriers.
    __device__ __forceinline__ bool active(int group) const { return butterfly(group) < size() / kFftEach; }
    // Index of x[group][i] in natural order, before forward and after inverse transforms.
    __device__ __forceinline__ int natural(int group, int i) const { return at(log_size, group, i); }

    template <class... Others>
    __device__ __forceinline__ void forward(Values& x, Others&... others) const {
        int log = log_size;
#pragma unroll 1
        for (; log > 3; log -= 3) {
            for_groups([&](int group) {
                const TwiddlePowers<Real> powers = powers_at<false>(log, group);
                Number* to = exchange;
                const auto write = [&](Group& values) {
                    transform8<false>(values);
                    turn(values, powers);
                    store(to, log, group, values);
                    to += fft_padded(size());
                };
                write(x[group]);
                (write(others[group]), ...);
            });
            synchronize(log);
            for_groups([&](int group) {
                const Number* from = exchange;
                const auto read = [&](Group& values) {
                    load(from, log - 3, group, values);
                    from += fft_padded(size());
                };
                read(x[group]);
                (read(others[group]), ...);
            });
        }
        for_groups([&](int group) {
            last<false>(log, x[group]);
            (last<false>(log, others[group]), ...);
        });
    }
    // Unnormalised: the result is size() times the inverse.
    __device__ __forceinline__ void inverse(Values& x) const {
        int log = (log_size - 1) % 3 + 1;
        for_groups([&](int group) { last<true>(log, x[group]); });
#pragma unroll 1
        for (log += 3; log <= log_size; log += 3) {
            for_groups([&](int group) { store(exchange, log - 3, group, x[group]); });
            synchronize(log);
            for_groups([&](int group) {
                load(exchange, log, group, x[group]);
                turn(x[group], powers_at<true>(log, group));
                transform8<true>(x[group]);
            });
        }
    }

  private:
    // Barrier of the threads that hold a part of 2^log values.
    __device__ __forceinline__ static void synchronize(int log) {
        static_assert(!kSeparateParts || kThreads <= 64 * 15, "a block has 15 named barriers");
        const int threads = 1 << (log - 3);
        if (!kSeparateParts || threads >= kThreads)
            __syncthreads();
        else if (threads <= 32)
            __syncwarp();
        else
            named_barrier_sync(threads, 1 + static_cast<int>(threadIdx.x) / threads);
    }
    template <class Do>
    __device__ __forceinline__ void for_groups(const Do& run) const {
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
            if (active(group)) run(group);
    }
    // Index in the pass over parts of 2^log values; in the last pass a thread holds eight consecutive values.
    __device__ __forceinline__ static int at(int log, int group, int i) {
        const int thread = butterfly(group);
        if (log <= 3) return thread * kFftEach + i;
        const int stride = log - 3;
        return ((thread >> stride) << log) + (thread & ((1 << stride) - 1)) + (i << stride);
    }
    __device__ __forceinline__ static void store(Number* to, int log, int group, const Group& x) {
#pragma unroll
        for (int i = 0; i < kFftEach; ++i) to[fft_padded(at(log, group, i))] = x[i];
    }
    __device__ __forceinline__ static void load(const Number* from, int log, int group, Group& x) {
#pragma unroll
        for (int i = 0; i < kFftEach; ++i) x[i] = from[fft_padded(at(log, group, i))];
    }
    template <bool kInverse>
    __device__ __forceinline__ TwiddlePowers<Real> powers_at(int log, int group) const {
        const TwiddlePowers<Real> powers = twiddles.at(log, butterfly(group) & ((1 << (log - 3)) - 1));
        if constexpr (kInverse) return {powers.one.conjugate(), powers.two.conjugate(), powers.four.conjugate()};
        return powers;
    }
    __device__ __forceinline__ static void turn(Group& x, const TwiddlePowers<Real>& powers) {
        const auto& [one, two, four] = powers;
        const Number three = one * two;
        x[1] = x[1] * one;
        x[2] = x[2] * two;
        x[3] = x[3] * three;
        x[4] = x[4] * four;
        x[5] = x[5] * (one * four);
        x[6] = x[6] * (two * four);
        x[7] = x[7] * (three * four);
    }
    template <bool kInverse>
    __device__ __forceinline__ static void last(int log, Group& x) {
        if (log == 3) {
            transform8<kInverse>(x);
        } else if (log == 2) {
            transform4<kInverse>(x[0], x[1], x[2], x[3]);
            transform4<kInverse>(x[4], x[5], x[6], x[7]);
        } else {
#pragma unroll
            for (int i = 0; i < kFftEach; i += 2) transform2<kInverse>(x[i], x[i + 1]);
        }
    }
};

}  // namespace gdn_cuda
