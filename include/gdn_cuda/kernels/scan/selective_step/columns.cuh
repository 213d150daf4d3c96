// scan/selective_step: the coefficients of the state: B and C of each item, which go to shared memory, and A.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/scan/selective_step/rows.cuh>

namespace gdn_cuda::scan {

// ---- In units of 16 bytes

// Which unit a thread has of the rows of B or of C of items: one in each step-th item. Computed where it is used, as that costs
// less than registers.
template <SelectiveStepConfig kConfig>
struct ColumnUnit {
    bool of_C, exists;
    int number;  // first of the unit, in its row
    int first_item, step;

    __device__ __forceinline__ explicit ColumnUnit(const SelectiveStepArgs& args) {
        const int thread = computed_once(static_cast<int>(threadIdx.x));
        const int most_units = args.columns >> min(bits(args.B), bits(args.C));
        const int width_bits = 32 - __clz(most_units - 1), row = thread >> width_bits;
        of_C = row & 1;
        number = (thread & ((1 << width_bits) - 1)) << (of_C ? bits(args.C) : bits(args.B));
        exists = number < args.columns;
        first_item = row >> 1;
        step = kConfig.threads() >> (width_bits + 1);
    }

  private:
    // Of the numbers of a unit.
    __device__ __forceinline__ static int bits(const SelectiveStepArgs::ByColumn& of) {
        return of.values.type == DType::f32 ? 2 : 3;
    }
};

// Starts to copy B and C of `count` items, from the block's item `first` on, to shared memory.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void fetch_columns(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                              const StepItems& items, int first, int count) {
    const ColumnUnit<kConfig> mine(args);
    if (!mine.exists) return;
    const auto& of = mine.of_C ? args.C : args.B;
    const char* at = items.address(of, first + mine.first_item, blockIdx.y * of.group + mine.number * of.n);
    auto* to = &shared.column_units[0][threadIdx.x];
#pragma unroll 1
    for (int item = mine.first_item; item < count; item += mine.step) {
        cp_async_16(to->bytes, at);
        at += mine.step * of.item;
        to += kConfig.threads();
    }
}

// Sixteen bytes of elements to fp32.
template <class Element>
__device__ __forceinline__ void widen(float* to, const unsigned char* from) {
    constexpr int kNumbers = 16 / sizeof(Element);
    Vector<Element, kNumbers, true> numbers;
    numbers.load(reinterpret_cast<const Element*>(from));
#pragma unroll
    for (int n = 0; n < kNumbers; n += 4) {
        Vector<float, 4, true> four;
#pragma unroll
        for (int j = 0; j < 4; ++j) four.set(j, number_at(numbers, n + j));
        four.store(to + n);
    }
}

// What fetch_columns has copied, for the items at work.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void widen_columns(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                              const StepItems& items) {
    const ColumnUnit<kConfig> mine(args);
    if (!mine.exists) return;
    const DType type = mine.of_C ? args.C.values.type : args.B.values.type;
    const auto* unit = &shared.column_units[0][threadIdx.x];
#pragma unroll 1
    for (int item = mine.first_item; item < items.count; item += mine.step, unit += kConfig.threads()) {
        float* to = (mine.of_C ? shared.items[item].C : shared.items[item].B) + mine.number;
        if (type == DType::f32)
            widen<float>(to, unit->bytes);
        else if (type == DType::bf16)
            widen<__nv_bfloat16>(to, unit->bytes);
        else
            widen<__half>(to, unit->bytes);
    }
}

// ---- A number at a time

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

// B and C of the items at work: as many threads an item as a power of 2 that covers its columns. With rglru, B is 1.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void stage_columns(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                              const StepItems& items) {
    using Number = typename StepTypes<kConfig>::Number;
    using InFlight = ColumnInFlight<is_complex(kConfig.state)>;
    constexpr int kAtOnce = 4;  // items
    const bool ignored = !is_complex(kConfig.state) && args.discretization == Discretization::rglru;
    const int thread = static_cast<int>(threadIdx.x);
    const int bits = args.columns >= kConfig.threads() ? 31 - __clz(kConfig.threads()) : 32 - __clz(args.columns - 1);
    const int width = 1 << bits, first_item = thread >> bits, item_step = kConfig.threads() >> bits;
    const i64 next_B = computed_once(args.B.item * item_step), next_C = computed_once(args.C.item * item_step);
#pragma unroll 1
    for (int n = thread & (width - 1); n < args.columns; n += width) {
        const auto start = [&](const SelectiveStepArgs::ByColumn& of) {
            return items.address(of, items.first + first_item, blockIdx.y * of.group + n * of.n);
        };
        const char *B = start(args.B), *C = start(args.C);
#pragma unroll 1
        for (int first = first_item; first < items.count; first += kAtOnce * item_step) {
            InFlight b[kAtOnce], c[kAtOnce];
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                if (first + k * item_step >= items.count) break;
                b[k].load(B, args.B.values);
                c[k].load(C, args.C.values);
                B += next_B;
                C += next_C;
            }
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                const int item = first + k * item_step;
                if (item >= items.count) break;
                reinterpret_cast<Number*>(shared.items[item].B)[n] = ignored ? Number{1.f} : b[k].number(args.B.values.type);
                reinterpret_cast<Number*>(shared.items[item].C)[n] = c[k].number(args.C.values.type);
            }
        }
    }
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
