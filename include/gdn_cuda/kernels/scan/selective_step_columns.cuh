// scan/selective_step: what the numbers of a state have: B and C of each item, which go to shared memory, and A.
#pragma once

#include <gdn_cuda/kernels/scan/selective_step_rows.cuh>

namespace gdn_cuda::scan {

// How threads share the numbers of B and C: as many threads an item as a power of 2 that covers its columns.
struct ColumnThread {
    int width, first_item, items;  // first of this thread's, and how many have their threads at once

    template <int kThreads>
    __device__ __forceinline__ static ColumnThread of(int columns) {
        const int bits = columns >= kThreads ? 31 - __clz(kThreads) : 32 - __clz(columns - 1);
        return {1 << bits, static_cast<int>(threadIdx.x) >> bits, kThreads >> bits};
    }
    __device__ __forceinline__ int first_column() const { return static_cast<int>(threadIdx.x) & (width - 1); }
};

// Where a thread has the first of its columns of B and C, in the first of its items of those at work.
struct ColumnPlaces {
    const char *B, *C;

    __device__ __forceinline__ static ColumnPlaces of(const SelectiveStepArgs& args, const ColumnThread& mine,
                                                      const StepItems& items) {
        const auto at = [&](const SelectiveStepArgs::ByColumn& of) {
            return items.address(of, mine.first_item, blockIdx.y * of.group + mine.first_column() * of.n);
        };
        return {at(args.B), at(args.C)};
    }
};

// A number of B or C that is being loaded.
template <bool kComplex>
struct ColumnInFlight {
    RawNumber raw;

    __device__ __forceinline__ void load(const char* from, const Tagged& of) { raw = load_raw_number(from, of); }
    __device__ __forceinline__ float number(DType type) const { return raw.number(type); }
};
template <>
struct ColumnInFlight<true> {
    Complex value;

    __device__ __forceinline__ void load(const char* from, const Tagged&) { value = *reinterpret_cast<const Complex*>(from); }
    __device__ __forceinline__ Complex number(DType) const { return value; }
};

// B and C; then the places are those of the next items. With rglru, B is 1.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void stage_columns(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                              const ColumnThread& mine, ColumnPlaces& places, const StepItems& items) {
    using Number = typename StepTypes<kConfig>::Number;
    using InFlight = ColumnInFlight<is_complex(kConfig.state)>;
    constexpr int kAtOnce = 4;  // items
    const bool ignored = !is_complex(kConfig.state) && args.discretization == Discretization::rglru;
    const i64 next_B = computed_once(args.B.item * mine.items), next_C = computed_once(args.C.item * mine.items);
    int passed = 0;  // columns
#pragma unroll 1
    for (int n = mine.first_column(); n < args.columns; n += mine.width, passed += mine.width) {
        const char* B = places.B + passed * args.B.n;
        const char* C = places.C + passed * args.C.n;
#pragma unroll 1
        for (int first = mine.first_item; first < items.count; first += kAtOnce * mine.items) {
            InFlight b[kAtOnce], c[kAtOnce];
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                if (first + k * mine.items >= items.count) break;
                b[k].load(B, args.B.values);
                c[k].load(C, args.C.values);
                B += next_B;
                C += next_C;
            }
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                const int item = first + k * mine.items;
                if (item >= items.count) break;
                reinterpret_cast<Number*>(shared.items[item].B)[n] = ignored ? Number{1.f} : b[k].number(args.B.values.type);
                reinterpret_cast<Number*>(shared.items[item].C)[n] = c[k].number(args.C.values.type);
            }
        }
    }
    places.B += kConfig.items() * args.B.item;
    places.C += kConfig.items() * args.C.item;
}

// A, and for rglru its logarithm.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void load_A(const SelectiveStepArgs& args, const StepLane<kConfig>& lane,
                                       typename StepTypes<kConfig>::Number (&A)[kConfig.elements()]) {
    using Types = StepTypes<kConfig>;
    using Number = typename Types::Number;
#pragma unroll
    for (Number& a : A) a = Number{};
    if (!lane.exists) return;
    const Number* row = static_cast<const Number*>(args.A) + lane.head * args.A_head + lane.d * args.A_d;
#pragma unroll
    for (int v = 0; v < kConfig.vectors; ++v) {
        if (lane.column(v) >= args.columns) break;
        if (v > 0 && args.tied) break;
        const Number* from = row + lane.column(v) * args.A_n;
        if (kConfig.aligned() && args.A_vectors) {
            typename Types::Wide vector;
            vector.load(reinterpret_cast<const float*>(from));
#pragma unroll
            for (int j = 0; j < kConfig.vector; ++j) A[v * kConfig.vector + j] = Types::at(vector, j);
        } else {
#pragma unroll
            for (int j = 0; j < kConfig.vector; ++j, from += args.A_n) A[v * kConfig.vector + j] = *from;
        }
    }
    if constexpr (!is_complex(kConfig.state)) {
        if (args.discretization == Discretization::rglru) {
#pragma unroll
            for (Number& a : A) a = logf(a);
        }
    }
}

}  // namespace gdn_cuda::scan
