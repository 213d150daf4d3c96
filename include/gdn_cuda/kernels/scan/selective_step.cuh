// scan/selective_step: one token or a few of every sequence of a selective scan, with states of a pool updated in place. The
// serving step of Mamba layers.
//
//     x <- Ā x + B̄ u        y = Σ_n C x + D u, times silu(z)
//
// A row is one channel of one sequence: N numbers of the state, for a group of 1 to 32 lanes. A block takes the same rows of up
// to 32 sequences, so A is loaded once for all of them, or of one sequence with several tokens, whose state stays in registers
// from the first to the last. It has four or eight items at a time, which are sequences or tokens. States come by cp.async, to
// the threads that will use them; once one is in registers, that of a later sequence takes its place in shared memory. δ, x, z
// (a thread each row and item), B and C are converted to fp32 in shared memory. Outputs go back the same way: a thread each row
// and item adds D u, applies the gate and stores.
//
// The transition is computed to full fp32 accuracy (exact_step.cuh), one for each number of the state, or one for each
// row where A does not vary along it, as in Mamba-2.
//
// Bound: the state's bytes, read and written once, as long as a number takes fewer than 50 instructions of fp32, or 25 of 16
// bits. Small batches: latency, of the slot and then of the state.
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
    using Wide = gdn_cuda::Vector<float, kConfig.vector * kParts, kConfig.aligned()>;  // the same numbers in fp32
    using Number = scan::Number<kComplex>;

    template <class AnyVector>
    __device__ __forceinline__ static Number at(const AnyVector& vector, int j) {
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
    // Whether there is anything for this lane in its row.
    __device__ __forceinline__ bool works(int columns) const { return exists && column(0) < columns; }
    // The column of a vector's first number.
    __device__ __forceinline__ int column(int vector) const { return (vector * lanes + lane) * kConfig.vector; }
    // Where this lane's part of the row starts in a state, in bytes.
    __device__ __forceinline__ i64 state_offset(const SelectiveStepArgs& args) const {
        const i64 row = static_cast<i64>(head) * args.dim + d;
        return (row * args.columns + lane * kConfig.vector) * bytes_of(kConfig.state);
    }
    // Of a vector, from that of the lane's first.
    __device__ __forceinline__ int vector_offset(int vector) const {
        return vector * lanes * kConfig.vector * bytes_of(kConfig.state);
    }
};

// What the items of a block are: tokens of one sequence, or sequences with one token each. `first` is the first of those at
// work, `count` how many these are.
struct StepItems {
    bool one_token;
    int first_sequence, all;
    int first, count;

    __device__ __forceinline__ int sequence(int item) const {
        return one_token ? first_sequence + first + item : first_sequence;
    }
    __device__ __forceinline__ int token(int item) const { return one_token ? 0 : first + item; }
    __device__ __forceinline__ int in_block(int item) const { return one_token ? first + item : 0; }  // sequence
    // Where a tensor has the number of one of the block's items.
    template <class Tensor>
    __device__ __forceinline__ const char* address(const Tensor& of, int item, i64 offset) const {
        return static_cast<const char*>(of.values.data) + first_sequence * of.sequence + item * of.item + offset;
    }
};

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

// ---- Loads

template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void find_states(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                            int first_sequence, int sequences) {
    const int mine = static_cast<int>(threadIdx.x);
    if (mine >= sequences) return;
    i64 slot;
    int step;
    const Place place = starting_slot(args, first_sequence + mine, slot, step);
    shared.place[mine] = static_cast<int>(place);
    const char* pool = static_cast<const char*>(args.pool);
    shared.from[mine] = place == Place::run ? pool + slot * args.pool_slot * bytes_of(kConfig.state) : nullptr;
}

// The state at `from`, if any, into the place of an item. For lanes that work.
template <SelectiveStepConfig kConfig, class Item>
__device__ __forceinline__ void fetch_state(Item& item, const StepLane<kConfig>& lane, const void* from, i64 offset,
                                            int columns) {
    if constexpr (kConfig.aligned()) {
        if (from == nullptr) return;
        const char* lanes_part = static_cast<const char*>(from) + offset;
#pragma unroll
        for (int v = 0; v < kConfig.vectors; ++v)
            if (v == 0 || lane.column(v) < columns)
                cp_async_16(item.state[v][threadIdx.x].bytes, lanes_part + lane.vector_offset(v));
    }
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

// δ, x and the gate of z: a thread has one row, and each lanes-th item. Then its places are those of the next items.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void stage_rows(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                           const StepLane<kConfig>& mine, RowPlaces& places, float bias, int first_item,
                                           const StepItems& items) {
    if (!mine.exists) return;
    const bool own_delta_a = args.delta_a.values.data != nullptr, gated = args.z.values.data != nullptr;
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
        shared.items[item].row[mine.in_block] = {size, own_delta_a ? delta_a.number(args.delta_a.values.type) : size,
                                                 x.number(args.x.values.type),
                                                 gated ? silu_fast(z.number(args.z.values.type)) : 1.f};
    }
    constexpr int kItems = kConfig.items();
    places.x += kItems * args.x.item;
    places.delta += kItems * args.delta.item;
    if (own_delta_a) places.delta_a += kItems * args.delta_a.item;
    if (gated) places.z += kItems * args.z.item;
}

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

// B and C; then the places are those of the next items. With rglru, B is 1.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void stage_columns(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                              const ColumnThread& mine, ColumnPlaces& places, const StepItems& items) {
    constexpr int kAtOnce = 4;  // items
    const bool ignored = args.discretization == Discretization::rglru;
    const i64 next_B = computed_once(args.B.item * mine.items), next_C = computed_once(args.C.item * mine.items);
    int passed = 0;  // columns
#pragma unroll 1
    for (int n = mine.first_column(); n < args.columns; n += mine.width, passed += mine.width) {
        const char* B = places.B + passed * args.B.n;
        const char* C = places.C + passed * args.C.n;
#pragma unroll 1
        for (int first = mine.first_item; first < items.count; first += kAtOnce * mine.items) {
            if constexpr (kConfig.parts() == 1) {
                RawNumber b[kAtOnce], c[kAtOnce];
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k) {
                    if (first + k * mine.items >= items.count) break;
                    b[k] = load_raw_number(B, args.B.values);
                    c[k] = load_raw_number(C, args.C.values);
                    B += next_B;
                    C += next_C;
                }
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k) {
                    const int item = first + k * mine.items;
                    if (item >= items.count) break;
                    shared.items[item].B[n] = ignored ? 1.f : b[k].number(args.B.values.type);
                    shared.items[item].C[n] = c[k].number(args.C.values.type);
                }
            } else {
                Complex b[kAtOnce], c[kAtOnce];
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k) {
                    if (first + k * mine.items >= items.count) break;
                    b[k] = *reinterpret_cast<const Complex*>(B);
                    c[k] = *reinterpret_cast<const Complex*>(C);
                    B += next_B;
                    C += next_C;
                }
#pragma unroll
                for (int k = 0; k < kAtOnce; ++k) {
                    const int item = first + k * mine.items;
                    if (item >= items.count) break;
                    reinterpret_cast<Complex*>(shared.items[item].B)[n] = b[k];
                    reinterpret_cast<Complex*>(shared.items[item].C)[n] = c[k];
                }
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

template <SelectiveStepConfig kConfig, class Item>
__device__ __forceinline__ void load_state(const Item& item, const StepLane<kConfig>& lane, i64 offset, int columns,
                                           typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    using Types = StepTypes<kConfig>;
    using Element = typename Types::Element;
#pragma unroll
    for (int v = 0; v < kConfig.vectors; ++v) {
        typename Types::Vector vector;
        if constexpr (kConfig.aligned()) {
            vector.load(reinterpret_cast<const Element*>(item.state[v][threadIdx.x].bytes));
        } else {
            const char* from = static_cast<const char*>(item.from);
            vector.clear();
            if (from != nullptr && lane.column(v) < columns)
                vector.load(reinterpret_cast<const Element*>(from + offset + lane.vector_offset(v)));
        }
#pragma unroll
        for (int j = 0; j < kConfig.vector; ++j) state[v * kConfig.vector + j] = Types::at(vector, j);
    }
}

// ---- The recurrence

// Hides from the compiler that a number does not change: it would compute before the loop what a discretization makes of A, and
// keep that in registers too.
__device__ __forceinline__ float kept_in_loop(float x) {
    asm volatile("" : "+f"(x));
    return x;
}
__device__ __forceinline__ Complex kept_in_loop(const Complex& x) {
    return {kept_in_loop(x.re), kept_in_loop(x.im)};
}

template <SelectiveStepConfig kConfig, Discretization kKind>
__device__ __forceinline__ auto transition(float delta, float delta_a, const typename StepTypes<kConfig>::Number& A) {
    if constexpr (bytes_of(kConfig.state) == 2 && (kKind == Discretization::mamba || kKind == Discretization::dirac)) {
        // The state's rounding hides that of Ā; where it has 16 bits, instructions count.
        return ExactStep<float>{{exp2_fast(delta_a * kLog2e * A), false}, kKind == Discretization::mamba ? delta : 1.f};
    } else {
        return exact_step<kKind>(delta, delta_a, A);
    }
}

template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void store_state(void* to, const StepLane<kConfig>& lane, i64 offset, int columns,
                                            const typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    using Types = StepTypes<kConfig>;
    if (to == nullptr) return;
    char* row = static_cast<char*>(to) + offset;
#pragma unroll
    for (int v = 0; v < kConfig.vectors; ++v) {
        if (v > 0 && lane.column(v) >= columns) break;
        typename Types::Vector vector;
#pragma unroll
        for (int j = 0; j < kConfig.vector; ++j) Types::set(vector, j, state[v * kConfig.vector + j]);
        vector.store_global(reinterpret_cast<typename Types::Element*>(row + lane.vector_offset(v)));
    }
}

// All items at work: their states move on, and each lane's part of Σ C x goes to shared memory.
template <SelectiveStepConfig kConfig, Discretization kKind, bool kTied>
__device__ __forceinline__ void advance_as(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                           const StepLane<kConfig>& lane, const StepItems& items,
                                           const typename StepTypes<kConfig>::Number (&A)[kConfig.elements()],
                                           typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    using Types = StepTypes<kConfig>;
    const i64 offset = lane.state_offset(args);
    const int loaded = items.one_token ? items.count : items.first == 0 ? 1 : 0;
    auto* next = shared.items;
#pragma unroll 1
    for (int item = 0; item < items.count; ++item) {
        auto& at = *next++;
        if (item < loaded) load_state<kConfig>(at, lane, offset, args.columns, state);
        const auto row = at.row[lane.in_block];
        ExactStep<typename Types::Number> by;
        if (kTied) by = transition<kConfig, kKind>(row.delta, row.delta_a, kept_in_loop(A[0]));
        float sum = 0.f;
#pragma unroll
        for (int v = 0; v < kConfig.vectors; ++v) {
            const int column = lane.column(v);
            if (v > 0 && column >= args.columns) break;
            typename Types::Wide B, C;
            B.load(at.B + column * kConfig.parts());
            C.load(at.C + column * kConfig.parts());
#pragma unroll
            for (int j = 0; j < kConfig.vector; ++j) {
                typename Types::Number& x = state[v * kConfig.vector + j];
                if (!kTied) by = transition<kConfig, kKind>(row.delta, row.delta_a, kept_in_loop(A[v * kConfig.vector + j]));
                x = advanced(x, by.decay, by.gain * row.u * Types::at(B, j));
                sum = add_real_product(sum, Types::at(C, j), x);
            }
        }
        at.sum[threadIdx.x] = sum;
        store_state<kConfig>(at.to, lane, offset, args.columns, state);
        fetch_state<kConfig>(at, lane, at.later, offset, args.columns);
    }
}

template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void advance(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                        const StepLane<kConfig>& lane, const StepItems& items,
                                        const typename StepTypes<kConfig>::Number (&A)[kConfig.elements()],
                                        typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    if (!lane.works(args.columns)) {
#pragma unroll 1
        for (int item = 0; item < items.count; ++item) shared.items[item].sum[threadIdx.x] = 0.f;
        return;
    }
    const auto as = [&]<Discretization kKind>() {
        if (kKind == Discretization::s7 || args.tied)
            advance_as<kConfig, kKind, true>(shared, args, lane, items, A, state);
        else
            advance_as<kConfig, kKind, false>(shared, args, lane, items, A, state);
    };
    switch (args.discretization) {
        case Discretization::mamba:
            return as.template operator()<Discretization::mamba>();
        case Discretization::zoh:
            return as.template operator()<Discretization::zoh>();
        case Discretization::bilinear:
            return as.template operator()<Discretization::bilinear>();
        case Discretization::dirac:
            return as.template operator()<Discretization::dirac>();
        case Discretization::s7:
            if constexpr (!is_complex(kConfig.state)) as.template operator()<Discretization::s7>();
            return;
        case Discretization::rglru:
            if constexpr (!is_complex(kConfig.state)) as.template operator()<Discretization::rglru>();
            return;
    }
}

// ---- Stores

template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void* kept_state(const SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                            const StepItems& items, int item) {
    const void* const from = shared.from[items.in_block(item)];
    if (from == nullptr) return nullptr;
    const int sequence = items.sequence(item), token = items.token(item);
    i64 slot;
    switch (args.kept) {
        case SelectiveStepArgs::every_by_slot:
            slot = load_index(args.slots, sequence * args.slots_sequence + token * args.slots_token);
            if (slot < 0 || slot >= args.slot_count) return nullptr;
            return static_cast<char*>(args.pool) + slot * args.pool_slot * bytes_of(kConfig.state);
        case SelectiveStepArgs::every_by_step_slot:
            slot = load_index(args.step_slots, sequence);
            if (slot < 0 || slot >= args.step_slot_count || token >= args.step_limit) return nullptr;
            return static_cast<char*>(args.steps) +
                   (slot * args.steps_row + token * args.steps_token) * bytes_of(kConfig.state);
        case SelectiveStepArgs::last:
            break;
    }
    return token + 1 < args.tokens ? nullptr : const_cast<void*>(from);
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

template <SelectiveStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least(kCompiledCapability))
    selective_step(const __grid_constant__ SelectiveStepArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SelectiveStepSharedPlan<kConfig>*>(memory);
    constexpr int kItems = kConfig.items();

    const int first_sequence = static_cast<int>(blockIdx.z) * args.block_sequences;
    const int sequences = min(args.block_sequences, args.sequences - first_sequence);
    const bool one_token = args.tokens == 1;
    const int thread = static_cast<int>(threadIdx.x), rows = kConfig.threads() >> args.lane_bits;
    const int first_item = thread >> (31 - __clz(rows));
    // Whose state this thread has, and whose inputs and outputs it moves.
    const StepLane<kConfig> lane(args, thread >> args.lane_bits, thread & ((1 << args.lane_bits) - 1));
    const StepLane<kConfig> mine(args, thread & (rows - 1), 0);
    StepItems items{one_token, first_sequence, one_token ? sequences : args.tokens, 0, 0};

    find_states<kConfig>(shared, args, first_sequence, sequences);
    __syncthreads();
    const int fetched = min(sequences, kItems);
#pragma unroll 1
    for (int item = 0; item < fetched; ++item)
        if (lane.works(args.columns))
            fetch_state<kConfig>(shared.items[item], lane, shared.from[item], lane.state_offset(args), args.columns);
    const ColumnThread columns = ColumnThread::of<kConfig.threads()>(args.columns);
    ColumnPlaces column_places = ColumnPlaces::of(args, columns, items);
    RowPlaces places = RowPlaces::of<kConfig>(args, mine, items, first_item);
    const auto of_row = [&](const SelectiveStepArgs::PerRow& of) {
        return of.values.data == nullptr || !mine.exists ? 0.f : load_number(of.values, mine.head * of.head + mine.d * of.d);
    };
    const float D = of_row(args.D), bias = of_row(args.bias);
    typename StepTypes<kConfig>::Number A[kConfig.elements()], state[kConfig.elements()];
    load_A<kConfig>(args, lane, A);

#pragma unroll 1
    for (; items.first < items.all; items.first += kItems) {
        items.count = min(kItems, items.all - items.first);
        stage_rows<kConfig>(shared, args, mine, places, bias, first_item, items);
        stage_columns<kConfig>(shared, args, columns, column_places, items);
        if (thread < items.count) {
            auto& item = shared.items[thread];
            const int later = items.first + kItems + thread;
            item.from = shared.from[items.in_block(thread)];
            item.to = kept_state<kConfig>(shared, args, items, thread);
            item.later = one_token && later < sequences ? shared.from[later] : nullptr;
        }
        cp_async_fence();
        cp_async_wait<0>();
        __syncthreads();
        advance<kConfig>(shared, args, lane, items, A, state);
        __syncthreads();
        store_outputs<kConfig>(shared, args, mine, places, D, first_item, items);
    }
}

}  // namespace gdn_cuda::scan
