// scan/selective_step: one token or a few of every sequence of a selective scan, with states of a pool updated in place. The
// serving step of Mamba layers.
//
//     x <- Ā x + B̄ u        y = Σ_n C x + D u, times silu(z)
//
// A row is one channel of one sequence: N numbers of the state, for a group of 1 to 32 lanes. A block takes the same rows of up
// to eight sequences, so A is loaded once for all of them, or of one sequence with several tokens, whose state stays in
// registers from the first to the last. All that a block reads is in flight at once: states by cp.async, to the threads that
// will use them, and meanwhile δ, x, z (a thread each row and token), B and C, converted to fp32 in shared memory. Outputs go
// back the same way: a thread each row and token adds D u, applies the gate and stores.
//
// The transition is computed to full fp32 accuracy (exact_step.cuh), one for each number of the state, or one for each
// row where A does not vary along it, as in Mamba-2.
//
// Bound: the state's bytes, read and written once. Small batches: latency, of the slot and then of the state.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/exact_step.cuh>
#include <gdn_cuda/kernels/scan/selective_step_plan.cuh>

namespace gdn_cuda::scan {

template <SelectiveStepConfig kConfig>
struct StepTypes {
    static constexpr bool kComplex = is_complex(kConfig.state);
    static constexpr int kParts = kConfig.parts();
    using Element = Storage<kComplex ? DType::f32 : kConfig.state>;
    using Vector = gdn_cuda::Vector<Element, kConfig.vector * kParts, kConfig.aligned()>;
    using Number = scan::Number<kComplex>;

    __device__ __forceinline__ static Number at(const Vector& vector, int j) {
        if constexpr (kComplex)
            return Complex{vector[2 * j], vector[2 * j + 1]};
        else
            return vector[j];
    }
    __device__ __forceinline__ static void set(Vector& vector, int j, const Number& x) {
        if constexpr (kComplex) {
            vector.set(2 * j, x.re);
            vector.set(2 * j + 1, x.im);
        } else {
            vector.set(j, x);
        }
    }
    __device__ __forceinline__ static Number shared_at(const float* numbers, int column) {
        if constexpr (kComplex)
            return reinterpret_cast<const Complex*>(numbers)[column];
        else
            return numbers[column];
    }
};

// A row of the block, and a lane's part of it.
template <SelectiveStepConfig kConfig>
struct StepLane {
    int in_block;  // row
    bool exists;
    int head, d;
    int lane, lanes;

    __device__ __forceinline__ StepLane(const SelectiveStepArgs& args, int row, int lane)
        : in_block(row), lane(lane), lanes(1 << args.lane_bits) {
        const int in_group = static_cast<int>(blockIdx.x) * (kConfig.threads() >> args.lane_bits) + row;
        exists = in_group < args.group_rows;
        const unsigned of_state = blockIdx.y * static_cast<unsigned>(args.group_rows) + (exists ? in_group : 0);
        head = args.heads == 1 ? 0 : static_cast<int>(of_state / static_cast<unsigned>(args.dim));
        d = static_cast<int>(of_state) - head * args.dim;
    }
    __device__ __forceinline__ i64 state_row(const SelectiveStepArgs& args) const {
        return (static_cast<i64>(head) * args.dim + d) * args.columns;
    }
    // The column of a vector's first number.
    __device__ __forceinline__ int column(int vector) const { return (vector * lanes + lane) * kConfig.vector; }
};

// What the items of a block are at a time: tokens of one sequence, or sequences with one token each.
struct StepItems {
    int first_sequence, first_token, count;
    bool one_token;

    __device__ __forceinline__ int sequence(int item) const { return one_token ? first_sequence + item : first_sequence; }
    __device__ __forceinline__ int token(int item) const { return one_token ? 0 : first_token + item; }
    __device__ __forceinline__ int slot(int item) const { return one_token ? item : 0; }  // among the block's
    // Offsets of the first item and from one to the next, of a tensor with strides `sequence` and `token`.
    __device__ __forceinline__ i64 first(i64 by_sequence, i64 by_token) const {
        return first_sequence * by_sequence + first_token * by_token;
    }
    __device__ __forceinline__ i64 next(i64 by_sequence, i64 by_token) const { return one_token ? by_sequence : by_token; }
};

// ---- Loads

template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void find_slots(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                           int first_sequence, int sequences) {
    const int mine = static_cast<int>(threadIdx.x);
    if (mine >= sequences) return;
    i64 slot;
    int step;
    shared.place[mine] = static_cast<int>(starting_slot(args, first_sequence + mine, slot, step));
    shared.slot[mine] = slot;
}

template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void fetch_states(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                             const StepLane<kConfig>& lane, int sequences) {
    using Element = typename StepTypes<kConfig>::Element;
    if constexpr (kConfig.aligned()) {
#pragma unroll 1
        for (int i = 0; i < sequences; ++i) {
            if (!lane.exists || shared.place[i] != static_cast<int>(Place::run)) continue;
            const Element* row = static_cast<const Element*>(args.pool) +
                                 (shared.slot[i] * args.pool_slot + lane.state_row(args)) * kConfig.parts();
#pragma unroll
            for (int v = 0; v < kConfig.vectors; ++v)
                if (lane.column(v) < args.columns)
                    cp_async_16(shared.state[i][v][threadIdx.x].bytes, row + lane.column(v) * kConfig.parts());
        }
        cp_async_fence();
    }
}

// δ, x and the gate of z: a thread has one row, and each lanes-th item.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void stage_rows(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                           const StepLane<kConfig>& mine, int first_item, const StepItems& items) {
    if (!mine.exists) return;
    const bool own_delta_a = args.delta_a.values.data != nullptr, gated = args.z.values.data != nullptr;
    float bias = 0.f;
    if (args.bias.values.data != nullptr)
        bias = load_number(args.bias.values, mine.head * args.bias.head + mine.d * args.bias.d);
    struct Walk {  // over a tensor's numbers of this row
        i64 at, next;
    };
    const auto walk = [&](const SelectiveStepArgs::ByRow& of) {
        const i64 next = items.next(of.sequence, of.token);
        return Walk{items.first(of.sequence, of.token) + first_item * next + mine.head * of.head + mine.d * of.d,
                    next * mine.lanes};
    };
    Walk of_x = walk(args.x), of_delta = walk(args.delta), of_delta_a = walk(args.delta_a), of_z = walk(args.z);
    const auto load = [](RawNumber& number, const SelectiveStepArgs::ByRow& from, Walk& walk) {
        number.load(from.values, walk.at);
        walk.at += walk.next;
    };
#pragma unroll 1
    for (int item = first_item; item < items.count; item += mine.lanes) {
        RawNumber x, delta, delta_a, z;
        load(x, args.x, of_x);
        load(delta, args.delta, of_delta);
        if (own_delta_a) load(delta_a, args.delta_a, of_delta_a);
        if (gated) load(z, args.z, of_z);
        float step = delta.number(args.delta.values.type) + bias;
        if (args.softplus) step = softplus(step);
        shared.delta[item][mine.in_block] = step;
        shared.delta_a[item][mine.in_block] = own_delta_a ? delta_a.number(args.delta_a.values.type) : step;
        shared.x[item][mine.in_block] = x.number(args.x.values.type);
        float gate = 1.f;
        if (gated) {
            gate = z.number(args.z.values.type);
            gate *= sigmoid(gate);
        }
        shared.gate[item][mine.in_block] = gate;
    }
}

// B and C of all items, B and C by turns. With rglru, B is 1.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void stage_columns(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                              const StepItems& items) {
    constexpr int kAtOnce = 8;  // loads in flight
    constexpr int kThreads = kConfig.threads(), kParts = kConfig.parts();
    // As many threads a row as a power of 2 that covers it.
    const int bits = args.columns >= kThreads ? 31 - __clz(kThreads) : 32 - __clz(args.columns - 1);
    const int thread = static_cast<int>(threadIdx.x), width = 1 << bits, step = kThreads >> bits;
    const bool ignored = args.discretization == Discretization::rglru;
#pragma unroll 1
    for (int n = thread & (width - 1); n < args.columns; n += width) {
#pragma unroll 1
        for (int first = thread >> bits; first < 2 * items.count; first += kAtOnce * step) {
            RawNumber re[kAtOnce];
            float im[kAtOnce];
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                const int row = first + k * step;
                if (row >= 2 * items.count) break;
                const SelectiveStepArgs::ByColumn& from = row & 1 ? args.C : args.B;
                const i64 at = items.first(from.sequence, from.token) + (row >> 1) * items.next(from.sequence, from.token) +
                               blockIdx.y * from.group + n * from.n;
                if constexpr (kParts == 1) {
                    re[k].load(from.values, at);
                } else {
                    const float* both = static_cast<const float*>(from.values.data) + 2 * at;
                    re[k].wide = __float_as_uint(both[0]);
                    im[k] = both[1];
                }
            }
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                const int row = first + k * step;
                if (row >= 2 * items.count) break;
                float* to = row & 1 ? shared.C[row >> 1] : shared.B[row >> 1];
                if constexpr (kParts == 1) {
                    to[n] = ignored && !(row & 1) ? 1.f : re[k].number((row & 1 ? args.C : args.B).values.type);
                } else {
                    to[2 * n] = __uint_as_float(re[k].wide);
                    to[2 * n + 1] = im[k];
                }
            }
        }
    }
}

template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void load_A(const SelectiveStepArgs& args, const StepLane<kConfig>& lane,
                                       typename StepTypes<kConfig>::Number (&A)[kConfig.elements()]) {
    using Number = typename StepTypes<kConfig>::Number;
    const Number* row = static_cast<const Number*>(args.A) + lane.head * args.A_head + lane.d * args.A_d;
#pragma unroll
    for (int i = 0; i < kConfig.elements(); ++i) {
        const int column = lane.column(i / kConfig.vector) + i % kConfig.vector;
        A[i] = Number{};
        if (lane.exists && column < args.columns && (i == 0 || !args.tied)) A[i] = row[column * args.A_n];
    }
}

template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void load_state(const SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                           const StepLane<kConfig>& lane, int at,
                                           typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    using Types = StepTypes<kConfig>;
    using Element = typename Types::Element;
    const bool run = lane.exists && shared.place[at] == static_cast<int>(Place::run);
#pragma unroll
    for (int v = 0; v < kConfig.vectors; ++v) {
        typename Types::Vector vector;
        vector.clear();
        if (run && lane.column(v) < args.columns) {
            if constexpr (kConfig.aligned())
                vector.load(reinterpret_cast<const Element*>(shared.state[at][v][threadIdx.x].bytes));
            else
                vector.load(static_cast<const Element*>(args.pool) +
                            (shared.slot[at] * args.pool_slot + lane.state_row(args) + lane.column(v)) * kConfig.parts());
        }
#pragma unroll
        for (int j = 0; j < kConfig.vector; ++j) state[v * kConfig.vector + j] = Types::at(vector, j);
    }
}

// ---- The recurrence

// Hides from the compiler that A does not change: it would compute before the loop what every discretization makes of A, and
// keep all that in registers.
__device__ __forceinline__ void keep_in_loop(float& x) {
    asm volatile("" : "+f"(x));
}
__device__ __forceinline__ void keep_in_loop(Complex& x) {
    asm volatile("" : "+f"(x.re), "+f"(x.im));
}
template <class Number, int kCount>
__device__ __forceinline__ void keep_in_loop(Number (&numbers)[kCount]) {
#pragma unroll
    for (Number& x : numbers) keep_in_loop(x);
}

template <SelectiveStepConfig kConfig, Discretization kKind>
__device__ __forceinline__ auto transition(float delta, float delta_a, const typename StepTypes<kConfig>::Number& A) {
    if constexpr (bytes_of(kConfig.state) == 2 && (kKind == Discretization::mamba || kKind == Discretization::dirac)) {
        // The state's rounding hides that of Ā; where it has 16 bits, instructions count.
        return ExactStep<float>{{exp2_fast(delta_a * A * kLog2e), false}, kKind == Discretization::mamba ? delta : 1.f};
    } else {
        return exact_step<kKind>(delta, delta_a, A);
    }
}

// The lane's part of Σ C x; the state moves on by one token. Numbers are computed one after another, as ten registers each
// would leave few threads.
template <SelectiveStepConfig kConfig, Discretization kKind>
__device__ __forceinline__ float advance_as(const SelectiveStepSharedPlan<kConfig>& shared, const StepLane<kConfig>& lane,
                                            int item, int columns, bool tied,
                                            const typename StepTypes<kConfig>::Number (&A)[kConfig.elements()],
                                            typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    using Types = StepTypes<kConfig>;
    const float x = shared.x[item][lane.in_block];
    const float delta = shared.delta[item][lane.in_block], delta_a = shared.delta_a[item][lane.in_block];
    float sum = 0.f;
    const auto move = [&](int i, int column, const auto& by) {
        const auto B = Types::shared_at(shared.B[item], column), C = Types::shared_at(shared.C[item], column);
        state[i] = advanced(state[i], by, B * x);
        sum = add_real_product(sum, C, state[i]);
    };
    const auto each = [&](auto&& transition_of) {
#pragma unroll
        for (int v = 0; v < kConfig.vectors; ++v) {
            const int column = lane.column(v);
            if (column >= columns) break;
#pragma unroll
            for (int j = 0; j < kConfig.vector; ++j)
                move(v * kConfig.vector + j, column + j, transition_of(v * kConfig.vector + j));
        }
    };
    if (tied || kKind == Discretization::s7) {
        const auto by = transition<kConfig, kKind>(delta, delta_a, A[0]);
        each([&](int) { return by; });
    } else {
        each([&](int i) { return transition<kConfig, kKind>(delta, delta_a, A[i]); });
    }
    return sum;
}

// Σ C x over the row, in every lane.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ float advance(const SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                         const StepLane<kConfig>& lane, int item,
                                         const typename StepTypes<kConfig>::Number (&A)[kConfig.elements()],
                                         typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    const auto as = [&]<Discretization kKind>() {
        return advance_as<kConfig, kKind>(shared, lane, item, args.columns, args.tied, A, state);
    };
    float sum = 0.f;
    switch (args.discretization) {
        case Discretization::mamba:
            sum = as.template operator()<Discretization::mamba>();
            break;
        case Discretization::zoh:
            sum = as.template operator()<Discretization::zoh>();
            break;
        case Discretization::bilinear:
            sum = as.template operator()<Discretization::bilinear>();
            break;
        case Discretization::dirac:
            sum = as.template operator()<Discretization::dirac>();
            break;
        case Discretization::s7:
            if constexpr (!is_complex(kConfig.state)) sum = as.template operator()<Discretization::s7>();
            break;
        case Discretization::rglru:
            if constexpr (!is_complex(kConfig.state)) sum = as.template operator()<Discretization::rglru>();
            break;
    }
#pragma unroll 1
    for (int step = lane.lanes >> 1; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// ---- Stores

// Where the state after an item is stored; nullptr: nowhere.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ typename StepTypes<kConfig>::Element* kept_state(const SelectiveStepSharedPlan<kConfig>& shared,
                                                                            const SelectiveStepArgs& args,
                                                                            const StepItems& items, int item) {
    using Element = typename StepTypes<kConfig>::Element;
    if (shared.place[items.slot(item)] != static_cast<int>(Place::run)) return nullptr;
    const int sequence = items.sequence(item), token = items.token(item);
    Element* pool = static_cast<Element*>(args.pool);
    i64 slot;
    switch (args.kept) {
        case SelectiveStepArgs::every_by_slot:
            slot = load_index(args.slots, sequence * args.slots_sequence + token * args.slots_token);
            if (slot < 0 || slot >= args.slot_count) return nullptr;
            return pool + slot * args.pool_slot * kConfig.parts();
        case SelectiveStepArgs::every_by_step_slot:
            slot = load_index(args.step_slots, sequence);
            if (slot < 0 || slot >= args.step_slot_count || token >= args.step_limit) return nullptr;
            return static_cast<Element*>(args.steps) + (slot * args.steps_row + token * args.steps_token) * kConfig.parts();
        case SelectiveStepArgs::last:
            break;
    }
    return token + 1 < args.tokens ? nullptr : pool + shared.slot[items.slot(item)] * args.pool_slot * kConfig.parts();
}

template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void store_state(typename StepTypes<kConfig>::Element* to, const SelectiveStepArgs& args,
                                            const StepLane<kConfig>& lane,
                                            const typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    using Types = StepTypes<kConfig>;
    if (to == nullptr || !lane.exists) return;
    to += lane.state_row(args) * kConfig.parts();
#pragma unroll
    for (int v = 0; v < kConfig.vectors; ++v) {
        if (lane.column(v) >= args.columns) continue;
        typename Types::Vector vector;
#pragma unroll
        for (int j = 0; j < kConfig.vector; ++j) Types::set(vector, j, state[v * kConfig.vector + j]);
        vector.store_global(to + lane.column(v) * kConfig.parts());
    }
}

__device__ __forceinline__ void store_number(void* to, DType type, i64 at, float x) {
    if (type == DType::f32)
        static_cast<float*>(to)[at] = x;
    else if (type == DType::bf16)
        static_cast<__nv_bfloat16*>(to)[at] = from_float<__nv_bfloat16>(x);
    else
        static_cast<__half*>(to)[at] = from_float<__half>(x);
}

// (2 if complex) Σ C x + D u, times the gate; rows and items go to threads as in stage_rows.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void store_outputs(const SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                              const StepLane<kConfig>& mine, int first_item, const StepItems& items) {
    if (!mine.exists) return;
    float D = 0.f;
    if (args.D.values.data != nullptr) D = load_number(args.D.values, mine.head * args.D.head + mine.d * args.D.d);
    const i64 first = items.first(args.out_sequence, args.out_token) + mine.head * args.out_head + mine.d * args.out_d;
    const i64 next = items.next(args.out_sequence, args.out_token);
#pragma unroll 1
    for (int item = first_item; item < items.count; item += mine.lanes) {
        const Place place = static_cast<Place>(shared.place[items.slot(item)]);
        float y = shared.delta[item][mine.in_block];
        if (is_complex(kConfig.state)) y *= 2.f;
        if (args.D.values.data != nullptr) y = fmaf(D, shared.x[item][mine.in_block], y);
        y *= shared.gate[item][mine.in_block];
        if (place != Place::run) y = place == Place::skip ? 0.f : quiet_nan();
        store_number(args.out, args.x.values.type, first + item * next, y);
    }
}

template <SelectiveStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least(kCompiledCapability))
    selective_step(const __grid_constant__ SelectiveStepArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SelectiveStepSharedPlan<kConfig>*>(memory);
    constexpr int kItems = kConfig.items();

    const int first_sequence = static_cast<int>(blockIdx.z) * args.block_sequences;
    const int sequences = min(args.block_sequences, args.sequences - first_sequence);
    const int thread = static_cast<int>(threadIdx.x), rows = kConfig.threads() >> args.lane_bits;
    const int first_item = thread >> (31 - __clz(rows));
    // Whose state this thread has, and whose inputs and outputs it moves.
    const StepLane<kConfig> lane(args, thread >> args.lane_bits, thread & ((1 << args.lane_bits) - 1));
    const StepLane<kConfig> mine(args, thread & (rows - 1), 0);

    find_slots<kConfig>(shared, args, first_sequence, sequences);
    __syncthreads();
    fetch_states<kConfig>(shared, args, lane, sequences);
    typename StepTypes<kConfig>::Number A[kConfig.elements()], state[kConfig.elements()];
    load_A<kConfig>(args, lane, A);

#pragma unroll 1
    for (int token = 0; token < args.tokens; token += kItems) {
        const bool one_token = args.tokens == 1;
        const StepItems items{first_sequence, token, one_token ? sequences : min(kItems, args.tokens - token), one_token};
        stage_rows<kConfig>(shared, args, mine, first_item, items);
        stage_columns<kConfig>(shared, args, items);
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (int item = 0; item < items.count; ++item) {
            if (one_token || token + item == 0) load_state<kConfig>(shared, args, lane, items.slot(item), state);
            keep_in_loop(A);
            auto* const to = kept_state<kConfig>(shared, args, items, item);
            const float sum = advance<kConfig>(shared, args, lane, item, A, state);
            store_state<kConfig>(to, args, lane, state);
            __syncwarp();  // all of the row have read δ
            if (lane.lane == 0) shared.delta[item][lane.in_block] = sum;
        }
        __syncthreads();
        store_outputs<kConfig>(shared, args, mine, first_item, items);
        if (token + kItems < args.tokens) __syncthreads();
    }
}

}  // namespace gdn_cuda::scan
