// scan/selective_step: what a row has of each item: δ, x and the gate of z, which go to shared memory, and the output.
#pragma once

#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/scan/selective_step_lane.cuh>

namespace gdn_cuda::scan {

// Hides from the compiler how a number came about: it would compute it again at each use.
__device__ __forceinline__ i64 computed_once(i64 x) {
    asm volatile("" : "+l"(x));
    return x;
}

__device__ __forceinline__ RawNumber load_raw_number(const char* from, const Tagged& of) {
    RawNumber number;
    number.load(from, of.type == DType::f32);
    return number;
}

// Where a thread has δ, x and z of its row, and its output; of its first item of those at work.
struct RowPlaces {
    const char *x, *delta, *delta_a, *z;
    char* out;

    template <SelectiveStepConfig kConfig>
    __device__ __forceinline__ static RowPlaces of(const SelectiveStepArgs& args, const StepLane<kConfig>& mine,
                                                   const StepItems& items, int item) {
        const auto at = [&](const SelectiveStepArgs::ByRow& of) {
            return items.address(of, item, mine.head * of.head + mine.d * of.d);
        };
        RowPlaces places{at(args.x), at(args.delta), nullptr, nullptr, nullptr};
        if (args.delta_a.values.data != nullptr) places.delta_a = at(args.delta_a);
        if (args.z.values.data != nullptr) places.z = at(args.z);
        places.out = const_cast<char*>(at(args.out));
        return places;
    }
};

// δ (1 for dirac), x and the gate of z: a thread has one row, and each lanes-th item. Then its places are those of the next
// items.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void stage_rows(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                           const StepLane<kConfig>& mine, RowPlaces& places, float bias, int first_item,
                                           const StepItems& items) {
    if (!mine.exists) return;
    const bool own_delta_a = args.delta_a.values.data != nullptr, gated = args.z.values.data != nullptr;
    const bool is_dirac = args.discretization == Discretization::dirac;
    const i64 next_x = computed_once(args.x.item << args.lane_bits);
    const i64 next_delta = computed_once(args.delta.item << args.lane_bits);
    const i64 next_z = computed_once(args.z.item << args.lane_bits);
    RowPlaces at = places;
#pragma unroll 1
    for (int item = first_item; item < items.count; item += mine.lanes) {
        const RawNumber x = load_raw_number(at.x, args.x.values), delta = load_raw_number(at.delta, args.delta.values);
        RawNumber delta_a, z;
        at.x += next_x;
        at.delta += next_delta;
        if (own_delta_a) {
            delta_a = load_raw_number(at.delta_a, args.delta_a.values);
            at.delta_a += args.delta_a.item << args.lane_bits;
        }
        if (gated) {
            z = load_raw_number(at.z, args.z.values);
            at.z += next_z;
        }
        float size = delta.number(args.delta.values.type) + bias;
        if (args.softplus) size = softplus_fast(size);
        shared.items[item].row[mine.in_block] = {
            is_dirac ? 1.f : size, own_delta_a ? delta_a.number(args.delta_a.values.type) : size, x.number(args.x.values.type),
            gated ? silu_fast(z.number(args.z.values.type)) : 1.f};
    }
    constexpr int kItems = kConfig.items();
    places.x += kItems * args.x.item;
    places.delta += kItems * args.delta.item;
    if (own_delta_a) places.delta_a += kItems * args.delta_a.item;
    if (gated) places.z += kItems * args.z.item;
}

__device__ __forceinline__ void store_number(void* to, DType type, float x) {
    if (type == DType::f32)
        *static_cast<float*>(to) = x;
    else if (type == DType::bf16)
        *static_cast<__nv_bfloat16*>(to) = from_float<__nv_bfloat16>(x);
    else
        *static_cast<__half*>(to) = from_float<__half>(x);
}

// Σ C x of a row from its lanes' parts.
__device__ __forceinline__ float row_sum(const float* parts, int lanes) {
    if (lanes == 1) return parts[0];
    if (lanes == 2) return parts[0] + parts[1];
    float sum = 0.f;
#pragma unroll 1
    for (int lane = 0; lane < lanes; lane += 4) {
        Vector<float, 4, true> four;
        four.load(parts + lane);
        sum += (four[0] + four[1]) + (four[2] + four[3]);
    }
    return sum;
}

// (2 if complex) Σ C x + D u, times the gate; rows and items go to threads as in stage_rows.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void store_outputs(const SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                              const StepLane<kConfig>& mine, RowPlaces& places, float D, int first_item,
                                              const StepItems& items) {
    if (!mine.exists) return;
    const DType type = args.x.values.type;
    const i64 next_out = computed_once(args.out.item << args.lane_bits);
    char* out = places.out;
#pragma unroll 1
    for (int item = first_item; item < items.count; item += mine.lanes) {
        const Place place = static_cast<Place>(shared.place[items.in_block(item)]);
        const auto row = shared.items[item].row[mine.in_block];
        float y = row_sum(shared.items[item].sum + (mine.in_block << args.lane_bits), mine.lanes);
        if (is_complex(kConfig.state)) y *= 2.f;
        if (args.D.values.data != nullptr) y = fmaf(D, row.u, y);
        y *= row.gate;
        if (place != Place::run) y = place == Place::skip ? 0.f : quiet_nan();
        store_number(out, type, y);
        out += next_out;
    }
    places.out += kConfig.items() * args.out.item;
}

}  // namespace gdn_cuda::scan
