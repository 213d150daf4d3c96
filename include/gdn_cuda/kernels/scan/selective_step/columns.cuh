// scan/selective_step: loads B and C of each item to shared memory, and A to registers.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/scan/selective_step/rows.cuh>

namespace gdn_cuda::scan {

// ---- By 16-byte units

// Which 16-byte unit of the items' rows of B or C a thread copies, in every step-th item. Units are copied as bytes; their
// dtype counts when widen converts them. Computed where it is used, as registers cost more.
template <SelectiveStepConfig kConfig>
struct ColumnUnit {
    bool is_C, exists;
    int element;  // index of the unit's first element in its row
    int first_item, step;

    __device__ __forceinline__ explicit ColumnUnit(const SelectiveStepArgs& args) {
        const int thread = opaque(static_cast<int>(threadIdx.x));
        const int most_units = args.columns >> min(bits(args.B), bits(args.C));
        const int width_bits = 32 - __clz(most_units - 1), row = thread >> width_bits;
        is_C = row & 1;
        element = (thread & ((1 << width_bits) - 1)) << (is_C ? bits(args.C) : bits(args.B));
        exists = element < args.columns;
        first_item = row >> 1;
        step = kConfig.threads() >> (width_bits + 1);
    }

  private:
    // log2 of the elements of a unit.
    __device__ __forceinline__ static int bits(const SelectiveStepArgs::ByColumn& x) {
        return x.values.type == DType::f32 ? 2 : 3;
    }
};

// Starts cp.async copies of B and C of `count` items, from the block's item `first` on.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void fetch_columns(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                              const StepItems& items, int first, int count) {
    const ColumnUnit<kConfig> mine(args);
    if (!mine.exists) return;
    const auto& x = mine.is_C ? args.C : args.B;
    const char* at = items.address(x, first + mine.first_item, blockIdx.y * x.group + mine.element * x.n);
    auto* to = &shared.column_units[0][threadIdx.x];
#pragma unroll 1
    for (int item = mine.first_item; item < count; item += mine.step) {
        cp_async_16(to->bytes, at);
        at += mine.step * x.item;
        to += kConfig.threads();
    }
}

// Converts 16 bytes of elements to fp32.
template <class Element>
__device__ __forceinline__ void widen(float* to, const unsigned char* from) {
    constexpr int kElements = 16 / sizeof(Element);
    Vector<Element, kElements, true> elements;
    elements.load(reinterpret_cast<const Element*>(from));
#pragma unroll
    for (int n = 0; n < kElements; n += 4) {
        Vector<float, 4, true> four;
#pragma unroll
        for (int j = 0; j < 4; ++j) four.set(j, element_at(elements, n + j));
        four.store(to + n);
    }
}

// Converts what fetch_columns copied, for the current items.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void widen_columns(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                              const StepItems& items) {
    const ColumnUnit<kConfig> mine(args);
    if (!mine.exists) return;
    const DType type = mine.is_C ? args.C.values.type : args.B.values.type;
    const auto* unit = &shared.column_units[0][threadIdx.x];
#pragma unroll 1
    for (int item = mine.first_item; item < items.count; item += mine.step, unit += kConfig.threads()) {
        float* to = (mine.is_C ? shared.items[item].C : shared.items[item].B) + mine.element;
        if (type == DType::f32)
            widen<float>(to, unit->bytes);
        else if (type == DType::bf16)
            widen<__nv_bfloat16>(to, unit->bytes);
        else
            widen<__half>(to, unit->bytes);
    }
}

// ---- By elements

// An element of B or C in flight.
template <bool kComplex>
struct ColumnInFlight {
    RawElement raw;

    __device__ __forceinline__ void load(const char* from, const Tagged& x) { raw = load_raw_element(from, x); }
    __device__ __forceinline__ float number(DType type) const { return raw.to_float(type); }
};
template <>
struct ColumnInFlight<true> {
    Complex value;

    __device__ __forceinline__ void load(const char* from, const Tagged&) { value = *reinterpret_cast<const Complex*>(from); }
    __device__ __forceinline__ Complex number(DType) const { return value; }
};

// Loads B and C of the current items; the threads of an item are a power of 2 that covers its columns. With rglru, B is 1.
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
    const i64 next_B = opaque(args.B.item * item_step), next_C = opaque(args.C.item * item_step);
#pragma unroll 1
    for (int n = thread & (width - 1); n < args.columns; n += width) {
        const auto start = [&](const SelectiveStepArgs::ByColumn& x) {
            return items.address(x, items.first + first_item, blockIdx.y * x.group + n * x.n);
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

// A, or for rglru its logarithm.
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
