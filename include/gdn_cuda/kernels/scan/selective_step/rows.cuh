// scan/selective_step: a row's scalars for each item: loads δ, x and the gate of z to shared memory, and stores outputs.
#pragma once

#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/scan/selective_step/lane.cuh>

namespace gdn_cuda::scan {

__device__ __forceinline__ RawElement load_raw_element(const char* from, const Tagged& x) {
    RawElement element;
    element.load(from, x.type == DType::f32);
    return element;
}

// A row's scalar that all tokens share; 0 if absent.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ float row_scalar(const SelectiveStepArgs::PerRow& x, const StepLane<kConfig>& mine) {
    if (x.values.data == nullptr || !mine.exists) return 0.f;
    const char* from = static_cast<const char*>(x.values.data) + mine.head * x.head + mine.d * x.d;
    return load_raw_element(from, x.values).to_float(x.values.type);
}

// Address of the row's scalar in an item.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ const char* row_address(const SelectiveStepArgs::ByRow& x, const StepLane<kConfig>& mine,
                                                   const StepItems& items, int item) {
    return items.address(x, item, mine.head * x.head + mine.d * x.d);
}

// Addresses of a thread's x, δ and z in its first item that is not loaded yet, and of the output of its first current item.
struct RowPlaces {
    const char *x, *delta, *z;
    char* out;

    // Moves on by `items` items.
    __device__ __forceinline__ void move_inputs(const SelectiveStepArgs& args, int items) {
        x += items * args.x.item;
        delta += items * args.delta.item;
        z += items * args.z.item;
    }
    __device__ __forceinline__ void move_output(const SelectiveStepArgs& args, int items) { out += items * args.out.item; }

    template <SelectiveStepConfig kConfig>
    __device__ __forceinline__ static RowPlaces of(const SelectiveStepArgs& args, const StepLane<kConfig>& mine,
                                                   const StepItems& items, int item) {
        const auto at = [&](const SelectiveStepArgs::ByRow& x) { return row_address(x, mine, items, item); };
        return {at(args.x), at(args.delta), args.z.values.data != nullptr ? at(args.z) : nullptr,
                const_cast<char*>(at(args.out))};
    }
};

// x, δ and z in flight, for the thread's row and its items, every lanes-th one. They are loaded before the current items are
// computed and used after that.
template <SelectiveStepConfig kConfig>
struct RowsInFlight {
    using Words = unsigned[kConfig.row_items()];
    Words x, delta, z = {};

    // `count`: how many items this thread has.
    __device__ __forceinline__ void load(const SelectiveStepArgs& args, const RowPlaces& places, int count) {
        load_words(x, places.x, args.x, args.lane_bits, count);
        load_words(delta, places.delta, args.delta, args.lane_bits, count);
        if (args.z.values.data != nullptr) load_words(z, places.z, args.z, args.lane_bits, count);
    }

  private:
    // Branches on the type: predicated loads of both types to one register would wait for each other.
    __device__ __forceinline__ static void load_words(Words& words, const char* from, const SelectiveStepArgs::ByRow& x,
                                                      int lane_bits, int count) {
        const i64 next = opaque(x.item << lane_bits);
        const auto load_as = [&]<class Word>(Word) {
            const char* at = from;
#pragma unroll
            for (int k = 0; k < kConfig.row_items(); ++k, at += next) {
                if (k >= count) break;
                words[k] = *reinterpret_cast<const Word*>(at);
            }
        };
        if (x.values.type == DType::f32)
            load_as(unsigned{});
        else
            load_as(static_cast<unsigned short>(0));
    }
};

// δ is 1 for dirac. Without z the gate is 1.
__device__ __forceinline__ StepRow row_of_token(const SelectiveStepArgs& args, float delta, float x, float z) {
    if (args.softplus) delta = softplus_fast(delta);
    return {args.discretization == Discretization::dirac ? 1.f : delta, delta, x,
            args.z.values.data != nullptr ? silu_fast(z) : 1.f};
}

// Writes the rows of the current items to shared memory.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void stage_rows(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                           const StepLane<kConfig>& mine, const RowsInFlight<kConfig>& loaded, float bias,
                                           int first_item, const StepItems& items) {
    const int count = mine.items_of(args, first_item, items.count);
#pragma unroll
    for (int k = 0; k < kConfig.row_items(); ++k) {
        if (k >= count) break;
        const int item = first_item + k * mine.lanes;
        shared.items[item].row[mine.in_block] = row_of_token(
            args, to_float_by_shift(loaded.delta[k], args.delta.values.type) + bias,
            to_float_by_shift(loaded.x[k], args.x.values.type), to_float_by_shift(loaded.z[k], args.z.values.type));
    }
    if (args.delta_a.values.data == nullptr) return;
    const StepLane<kConfig> row(args, opaque(mine.in_block),
                                0);  // recomputed, so that its head and channel take no registers
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
        const int item = first_item + k * mine.lanes;
        const char* from = row_address(args.delta_a, row, items, items.first + item);
        shared.items[item].row[mine.in_block].delta_a =
            load_raw_element(from, args.delta_a.values).to_float(args.delta_a.values.type);
    }
}

__device__ __forceinline__ void store_float(void* to, DType type, float x) {
    if (type == DType::f32) {
        *static_cast<float*>(to) = x;
        return;
    }
    const unsigned short brain = __bfloat16_as_ushort(from_float<__nv_bfloat16>(x));
    const unsigned short half = __half_as_ushort(from_float<__half>(x));
    *static_cast<unsigned short*>(to) = type == DType::bf16 ? brain : half;
}

// Σ C x of a row, from its lanes' sums.
__device__ __forceinline__ float row_sum(const float* sums, int lanes) {
    if (lanes == 1) return sums[0];
    if (lanes == 2) return sums[0] + sums[1];
    float sum = 0.f;
#pragma unroll 1
    for (int lane = 0; lane < lanes; lane += 4) {
        Vector<float, 4, true> four;
        four.load(sums + lane);
        sum += (four[0] + four[1]) + (four[2] + four[3]);
    }
    return sum;
}

// (Σ C x, twice for complex states, + D u) times the gate; 0 or NaN for a slot that is skipped or invalid.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ float output_of(const SelectiveStepArgs& args, float sum, const StepRow& row, float D, Place place) {
    float y = is_complex(kConfig.state) ? 2.f * sum : sum;
    if (args.D.values.data != nullptr) y = fmaf(D, row.u, y);
    y *= row.gate;
    return place == Place::run ? y : place == Place::skip ? 0.f : quiet_nan();
}

// Threads have the same rows and items as in stage_rows.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void store_outputs(const SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                              const StepLane<kConfig>& mine, const RowPlaces& places, float D, int first_item,
                                              const StepItems& items) {
    const i64 next = opaque(args.out.item << args.lane_bits);
    char* out = places.out;
    const int count = mine.items_of(args, first_item, items.count);
#pragma unroll
    for (int k = 0; k < kConfig.row_items(); ++k, out += next) {
        if (k >= count) break;
        const int item = first_item + k * mine.lanes;
        const Place place = static_cast<Place>(shared.place[items.in_block(item)]);
        const float sum = row_sum(shared.items[item].sum + (mine.in_block << args.lane_bits), mine.lanes);
        store_float(out, args.x.values.type, output_of<kConfig>(args, sum, shared.items[item].row[mine.in_block], D, place));
    }
}

}  // namespace gdn_cuda::scan
