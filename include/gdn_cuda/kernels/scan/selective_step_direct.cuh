// scan/selective_step_direct: one token of every sequence of a selective scan, for few sequences. Results are the same bits as
// those of scan/selective_step; it has no shared memory and no barriers.
//
// A row is one channel of one sequence, spread over 2 to 32 lanes, as in scan/selective_step. A lane loads its elements of the
// state, A, B and C, and its row's scalars, computes the next state, and stores it in the slot it read or another one. The
// lanes sum Σ C x by shuffles, and the first lane stores the output.
//
// Bound: latency, of one load from memory, or of two if the first one loads the slot. So all loads are issued before the first
// is used, and the code is short, as instructions are fetched from memory too. With many sequences the bound is instruction
// issue: every lane computes its row's scalars, and every sequence loads A again. docs/benchmarks/scan.md has measured times.
#pragma once

#include <gdn_cuda/kernels/scan/selective_step/columns.cuh>
#include <gdn_cuda/kernels/scan/selective_step/recurrence.cuh>
#include <gdn_cuda/kernels/scan/selective_step/rows.cuh>
#include <gdn_cuda/kernels/scan/selective_step/states.cuh>

namespace gdn_cuda::scan {

// The column of a vector's first element. Lanes without elements load those of column 0, which takes no branch.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ int existing_column(const StepLane<kConfig>& lane, int vector, int columns) {
    return lane.column(vector) < columns ? lane.column(vector) : 0;
}

// Properties of a call; kPlain: known at compile time, for what Mamba layers pass (SelectiveStepArgs::plain). It takes half of
// the instructions.
template <bool kPlain>
struct DirectCall {
    const SelectiveStepArgs& args;

    __device__ __forceinline__ bool has(const Tagged& x) const { return kPlain || x.data != nullptr; }
    __device__ __forceinline__ bool has_delta_a() const { return !kPlain && args.delta_a.values.data != nullptr; }
    __device__ __forceinline__ DType token_type(const Tagged& x) const { return kPlain ? DType::bf16 : x.type; }
    __device__ __forceinline__ DType row_type(const Tagged& x) const { return kPlain ? DType::f32 : x.type; }
    __device__ __forceinline__ bool column_units() const { return kPlain || args.column_units; }
    __device__ __forceinline__ bool in_place() const { return kPlain || args.in_place; }
    __device__ __forceinline__ bool is_rglru() const { return !kPlain && args.discretization == Discretization::rglru; }
};

// A lane's elements of B or C, as raw bits. Not a RawVector: its branch on the dtype would wait for earlier loads, so the
// second half is loaded for every dtype.
template <SelectiveStepConfig kConfig, bool kPlain>
struct DirectColumns {
    using Types = StepTypes<kConfig>;
    static constexpr int kFloats = kConfig.vector * kConfig.parts(), kHalf = kFloats / 2;
    // The two halves of an fp32 vector; a 16-bit vector is in the first.
    Raw<4 * kHalf> halves[kConfig.vectors][2];
    bool is_wide;

    __device__ __forceinline__ void load(const DirectCall<kPlain>& call, const SelectiveStepArgs::ByColumn& x, int sequence,
                                         const StepLane<kConfig>& lane) {
        const char* from = static_cast<const char*>(x.values.data) +
                           (sequence * static_cast<int>(x.sequence) + static_cast<int>(blockIdx.y) * static_cast<int>(x.group));
        const int next = kPlain ? 2 : static_cast<int>(x.n);
        is_wide = is_complex(kConfig.state) || call.token_type(x.values) == DType::f32 || !call.column_units();
#pragma unroll
        for (int v = 0; v < kConfig.vectors; ++v) {
            const char* at = from + existing_column(lane, v, call.args.columns) * next;
            if (call.column_units()) {
                halves[v][0].load(at);
                halves[v][1].load(at + (is_wide ? 4 * kHalf : 0));  // without a branch
            } else {
                load_elements(reinterpret_cast<float*>(halves[v]), at, x);
            }
        }
    }
    __device__ __forceinline__ void widen(typename Types::Wide& to, int v, DType type) const {
        const auto* words = reinterpret_cast<const unsigned*>(halves[v]);
        if (is_wide) {
#pragma unroll
            for (int j = 0; j < kFloats; ++j) to.set(j, __uint_as_float(words[j]));
        } else if constexpr (!is_complex(kConfig.state)) {
#pragma unroll
            for (int j = 0; j < kFloats; ++j) to.set(j, to_float_by_shift(words[j / 2] >> (j % 2 * 16) & 0xffffu, type));
        }
    }

  private:
    __device__ __forceinline__ static void load_elements(float* to, const char* from, const SelectiveStepArgs::ByColumn& x) {
#pragma unroll
        for (int j = 0; j < kConfig.vector; ++j, from += x.n) {
            if constexpr (is_complex(kConfig.state)) {
                const Complex number = *reinterpret_cast<const Complex*>(from);
                to[2 * j] = number.re, to[2 * j + 1] = number.im;
            } else {
                to[j] = load_raw_element(from, x.values).to_float(x.values.type);
            }
        }
    }
};

// The sum over a row's lanes, in the order of row_sum.
__device__ __forceinline__ float row_sum_over_lanes(float part, int lanes) {
    const float pair = part + __shfl_xor_sync(0xffffffffu, part, 1);
    if (lanes == 2) return pair;
    const float four = pair + __shfl_xor_sync(0xffffffffu, pair, 2);
    float sum = 0.f;
#pragma unroll 1
    for (int lane = 0; lane < lanes; lane += 4) sum += __shfl_sync(0xffffffffu, four, lane, lanes);
    return sum;
}

template <SelectiveStepConfig kConfig, bool kPlain>
__device__ __forceinline__ void step_directly(const SelectiveStepArgs& args) {
    using Types = StepTypes<kConfig>;
    const DirectCall<kPlain> call{args};
    const int thread = static_cast<int>(threadIdx.x), sequence = static_cast<int>(blockIdx.z);
    const StepLane<kConfig> lane(args, thread >> args.lane_bits, thread & ((1 << args.lane_bits) - 1));
    const bool works = lane.works(args.columns);

    SlotInFlight loaded;
    loaded.load(args, sequence);
    const auto row_address = [&](const auto& x, int token_offset) {
        return static_cast<const char*>(x.values.data) +
               (token_offset + lane.head * static_cast<int>(x.head) + lane.d * static_cast<int>(x.d));
    };
    const auto token_address = [&](const SelectiveStepArgs::ByRow& x) {
        return row_address(x, sequence * static_cast<int>(x.sequence));
    };
    struct RowScalar {
        DType type;
        RawElement raw;
        __device__ __forceinline__ float to_float() const { return raw.to_float(type); }
    };
    const auto load = [&](const Tagged& x, DType type, const char* from) {
        RowScalar loading{type, {}};
        if (call.has(x)) loading.raw.load(from, type == DType::f32);
        return loading;
    };
    const auto token = [&](const SelectiveStepArgs::ByRow& x) {
        return load(x.values, call.token_type(x.values), token_address(x));
    };
    const auto row_scalar = [&](const SelectiveStepArgs::PerRow& x) {
        return load(x.values, call.row_type(x.values), row_address(x, 0));
    };
    const RowScalar x = token(args.x), delta = token(args.delta), z = token(args.z), bias = row_scalar(args.bias),
                    D = row_scalar(args.D);
    RowScalar delta_a{};
    if (call.has_delta_a()) delta_a = token(args.delta_a);
    typename Types::Number A[kConfig.elements()], state[kConfig.elements()];
    const int next_A = static_cast<int>(args.A_n);
    const auto* own_A = static_cast<const typename Types::Number*>(args.A) +
                        (lane.head * static_cast<int>(args.A_head) + lane.d * static_cast<int>(args.A_d));
#pragma unroll
    for (int v = 0; v < kConfig.vectors; ++v) {
        const auto* from = own_A + existing_column(lane, v, args.columns) * next_A;
#pragma unroll
        for (int j = 0; j < kConfig.vector; ++j) {
            A[v * kConfig.vector + j] = {};
            if (v + j == 0 || !args.tied) A[v * kConfig.vector + j] = from[j * next_A];
        }
    }
    DirectColumns<kConfig, kPlain> B, C;
    B.load(call, args.B, sequence, lane);
    C.load(call, args.C, sequence, lane);
    i64 slot;
    const Place place = loaded.place(args, slot);
    char* own = nullptr;
    if (place == Place::run && works)
        own = static_cast<char*>(args.pool) + slot * args.pool_slot * bytes_of(kConfig.state) + lane.state_offset(args);
    typename Types::Vector vectors[kConfig.vectors];
#pragma unroll
    for (int v = 0; v < kConfig.vectors; ++v) {
        vectors[v].clear();
        if (own != nullptr && lane.column(v) < args.columns)
            vectors[v].load_streaming(reinterpret_cast<typename Types::Element*>(own + lane.vector_offset(v)));
    }

    if constexpr (!is_complex(kConfig.state))
        if (call.is_rglru())
#pragma unroll
            for (float& a : A) a = logf(a);
    StepRow row = row_of_token(args, delta.to_float() + bias.to_float(), x.to_float(), z.to_float());
    if (call.has_delta_a()) row.delta_a = delta_a.to_float();
#pragma unroll
    for (int i = 0; i < kConfig.elements(); ++i) state[i] = Types::at(vectors[i / kConfig.vector], i % kConfig.vector);
    float part = 0.f;
    const auto move_on = [&]<bool kTied>(const auto& step_of) {
        part = advance_lane<kTied, kConfig>(step_of, row, lane, args.columns, A, state, [&](int v, auto& to_B, auto& to_C) {
            if (call.is_rglru())
                to_B.fill(1.f);
            else
                B.widen(to_B, v, call.token_type(args.B.values));
            C.widen(to_C, v, call.token_type(args.C.values));
        });
    };
    if (works) with_step<kConfig, kPlain>(args, move_on);
    if (!call.in_place() && own != nullptr) {
        own = static_cast<char*>(kept_state<kConfig>(args, own, sequence, 0));
        if (args.to.rows.data != nullptr && own != nullptr) own += lane.state_offset(args);
    }
    store_state<kConfig>(own, lane, 0, args.columns, state);
    const float y = output_of<kConfig>(args, row_sum_over_lanes(part, lane.lanes), row, D.to_float(), place);
    if (lane.lane == 0 && lane.exists)
        store_float(const_cast<char*>(token_address(args.out)), call.token_type(args.x.values), y);
}

template <SelectiveStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.direct_blocks_at_least())
    selective_step_direct(const __grid_constant__ SelectiveStepArgs args) {
    if constexpr (!is_complex(kConfig.state))
        if (args.plain) return step_directly<kConfig, true>(args);
    step_directly<kConfig, false>(args);
}

}  // namespace gdn_cuda::scan
