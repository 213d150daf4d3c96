// One token of many sequences on int8 states, for gdn/decode_codes and scan/selective_step_codes.
//
// A warp has a head of a sequence, or a part of its rows, at a time, and goes on to another one: 16 rows after the other pass
// through its own stages in shared memory, those of its next head too, so that loads never pause. Products with key and query
// are those of integer tensor products (code_products.cuh), which take codes as they are; the update is in pairs of fp16
// (code_update.cuh): a lane has half a group of columns of two rows at a time.
//
// A lane reads the codes that it copied itself; scales and keys are those of other lanes, so the warp syncs.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/recurrence/code_products.cuh>
#include <gdn_cuda/kernels/recurrence/code_step_plan.cuh>
#include <gdn_cuda/kernels/recurrence/code_update.cuh>

namespace gdn_cuda::gdn {

// A part of a head of a sequence.
template <CodeStepConfig kConfig>
struct CodesUnit {
    using Io = Storage<kConfig.io>;
    int sequence, column;

    __device__ __forceinline__ CodesUnit(const CodeStepUnits& args, int unit)
        : sequence(unit / args.columns), column(unit % args.columns) {}
    // The warp's next one.
    __device__ __forceinline__ void advance(const CodeStepUnits& args) {
        sequence += args.sequences_ahead;
        column += args.columns_ahead;
        if (column < args.columns) return;
        column -= args.columns;
        ++sequence;
    }
    __device__ __forceinline__ int head(const CodeStepUnits& args) const { return column >> args.part_bits; }
    __device__ __forceinline__ int first_row(const CodeStepUnits& args) const {
        return (column & ((1 << args.part_bits) - 1)) * args.tiles * CodeStepConfig::kTileRows;
    }
    __device__ __forceinline__ int key_head(const CodeStepUnits& args) const {
        const unsigned long long product = static_cast<unsigned long long>(head(args)) * args.key_inverse;
        return args.key_inverse == 0 ? head(args) : static_cast<int>(product >> 32);
    }
    __device__ __forceinline__ i64 slot(const auto& step) const {
        return step.slots.data == nullptr ? sequence : load_index(step.slots, sequence * step.slots_sequence);
    }
    __device__ __forceinline__ Io* at(const auto& heads, int head_index) const {
        return static_cast<Io*>(heads.data) + sequence * heads.sequence + head_index * heads.head;
    }
    // The first row of the part.
    __device__ __forceinline__ CodedStates state(const auto& args, const void* data, i64 at, float* scales,
                                                 i64 scales_at) const {
        return state_pointer<signed char>(data, at, scales, scales_at) +
               (static_cast<i64>(head(args)) * args.step.dv + first_row(args)) * kConfig.head_k;
    }
};

__device__ __forceinline__ bool is_slot(const auto& step, i64 slot) {
    return slot >= 0 && slot != step.null_slot && slot < step.slot_count;
}

// Copies a warp's tiles in order, of one unit after the other.
template <CodeStepConfig kConfig, class Args>
struct CodesFetch {
    using Shared = CodeStepSharedPlan<kConfig>;
    static constexpr int kRows = CodeStepConfig::kTileRows, kGroups = kConfig.groups();

    typename Shared::Warp& shared;
    const Args& args;
    CodesUnit<kConfig> next;
    int next_slot;  // below 0: none
    int tile;       // the current one, 16 rows of this unit
    int units;      // after this one
    unsigned stage = 0;
    bool exists;  // the slot
    const signed char* codes;
    const float* scales;  // those of rows g and g + 8, for lanes t = 0 and 1

    __device__ __forceinline__ CodesFetch(typename Shared::Warp& shared, const Args& args, const CodesUnit<kConfig>& first,
                                          int count)
        : shared(shared), args(args), next(first), tile(0), units(count) {
        next_slot = slot_of_next();
        begin();
    }
    __device__ __forceinline__ void operator()() {
        if (units >= 0) {
            if (exists) copy();
            if (++tile == args.tiles) begin();
        }
        stage = stage + 1 == kConfig.stages ? 0 : stage + 1;
        cp_async_fence();
    }

  private:
    __device__ __forceinline__ int slot_of_next() const {
        const i64 slot = next.slot(args.step);
        return is_slot(args.step, slot) ? static_cast<int>(slot) : -1;
    }
    __device__ __forceinline__ void begin() {
        tile = 0;
        if (--units < 0) return;
        const auto& step = args.step;
        const i64 slot = next_slot;
        exists = slot >= 0;
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const CodedStates from =
            next.state(args, step.state_in, slot * step.state_in_slot, step.scales_in, slot * step.scales_in_slot);
        codes = from.codes + g * kConfig.head_k + CodeProducts<kConfig.head_k>::column(0);
        scales = from.scales + (g + 8 * t) * kGroups;
        next.advance(args);
        if (units > 0) next_slot = slot_of_next();
    }
    __device__ __forceinline__ void copy() {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        auto& to = shared.stages[stage];
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int i = 0; i < kConfig.vectors(); ++i)
                cp_async_16(&to.codes[r][i][lane], codes + 8 * r * kConfig.head_k + 64 * i);
        if (t < 2) cp_async<kGroups * 4>(to.scales[g + 8 * t], scales);
        codes += kRows * kConfig.head_k;
        scales += kRows * kGroups;
    }
};

// A lane's columns of a key, and what is the same for all rows.
template <CodeStepConfig kConfig>
struct CodesToken {
    using Io = Storage<kConfig.io>;
    using Products = CodeProducts<kConfig.head_k>;
    CodeKey key[Products::kVectors];
    TokenScalars scalars;

    // The warp syncs before and after.
    __device__ __forceinline__ void make(CodeOperand<kConfig.head_k>& operand, const auto& token, const auto& step) {
        constexpr int kMade = Products::kMade;
        const Io *const keys = reinterpret_cast<const Io*>(token.key), *const queries =
                                                                           reinterpret_cast<const Io*>(token.query);
        Vector<Io, kMade, true> some_keys, some_queries;
        some_keys.load(keys + threadIdx.x % 32 * kMade), some_queries.load(queries + threadIdx.x % 32 * kMade);
        float k[kMade], q[kMade], key_square = 0.f, query_square = 0.f, query_key = 0.f;
#pragma unroll
        for (int i = 0; i < kMade; ++i) {
            k[i] = some_keys[i], q[i] = some_queries[i];
            key_square = fmaf(k[i], k[i], key_square);
            query_square = fmaf(q[i], q[i], query_square);
            query_key = fmaf(q[i], k[i], query_key);
        }
        Products::make(operand, k, false);
        Products::make(operand, q, true);
        scalars.key_scale = 1.f;
        scalars.query_scale = step.scale;
        if (step.qk_norm) {
            scalars.key_scale = rsqrtf(group_sum<32>(key_square) + kNormEpsilon);
            scalars.query_scale *= rsqrtf(group_sum<32>(query_square) + kNormEpsilon);
        }
        scalars.query_key = group_sum<32>(query_key) * scalars.key_scale * scalars.query_scale;
#pragma unroll
        for (int i = 0; i < Products::kVectors; ++i) {
            float own[16];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                Vector<Io, 8, true> eight;
                eight.load(keys + Products::column(i) + half * 8);
#pragma unroll
                for (int j = 0; j < 8; ++j) own[8 * half + j] = eight[j];
            }
            key[i].make(own);
        }
    }
};

// A kernel's whole step. Args: CodeStepUnits with `step`, the tensors. Rule: what a token makes of a row. Its members
//
//     load(args, sequence, head), finish(args, scalars)     decay and beta of the scalars, loaded early and computed later
//     correction(scalars, value, sum)                       what the key is multiplied by, from the row's sum with it
//     gates(args)                                           the tensor of gates, if the configuration is gated
//     output(args, y, value, gate)                          of a row
template <CodeStepConfig kConfig, class Rule, class Args>
__device__ __forceinline__ void step_codes(const Args& args) {
    using Io = Storage<kConfig.io>;
    using Products = CodeProducts<kConfig.head_k>;
    constexpr int kRows = CodeStepConfig::kTileRows, kVectors = kConfig.vectors(), kGroups = kConfig.groups();
    extern __shared__ __align__(16) unsigned char memory[];
    const unsigned warp = threadIdx.x / 32;
    auto& shared = reinterpret_cast<CodeStepSharedPlan<kConfig>*>(memory)->warps[warp];
    const auto& step = args.step;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    wait_on_dependent_grids();
    // Units of a block are as far apart as blocks are, so that all multiprocessors have as many.
    const int first = static_cast<int>(warp * gridDim.x + blockIdx.x);
    if (first >= args.units) return;
    int units = (args.units - first + args.warps - 1) / args.warps;
    CodesUnit<kConfig> place(args, first);

    const auto copy_token = [&](const CodesUnit<kConfig>& unit, unsigned to) {
        constexpr int kVectorsOfToken = kConfig.head_k / 8;
        auto& token = shared.tokens[to];
        if (const int vector = lane % kVectorsOfToken, row = lane / kVectorsOfToken; row < 2)
            cp_async_16((row == 0 ? token.key : token.query) + vector,
                        unit.at(row == 0 ? step.key : step.query, unit.key_head(args)) + 8 * vector);
        if (lane < 2 * args.tiles)
            cp_async_16(token.values + lane, unit.at(step.value, unit.head(args)) + unit.first_row(args) + 8 * lane);
        if constexpr (kConfig.gated)
            if (const auto& gates = Rule::gates(args); gates.data != nullptr && lane < 2 * args.tiles)
                cp_async_16(token.gates + lane, unit.at(gates, unit.head(args)) + unit.first_row(args) + 8 * lane);
    };
    copy_token(place, 0);
    cp_async_fence();
    Products::clear(shared.operand);
    CodesFetch<kConfig, Args> fetch(shared, args, place, units);
#pragma unroll 1
    for (int i = 0; i < kConfig.stages; ++i) fetch();

    // A constant as an operand of __byte_perm would take the place of its selector, which then is in a register.
    const unsigned never = static_cast<unsigned>(args.units < 0);
    const CodeUpdate update{kCodeExponent - never, CodeUpdate::kPairExponents - never};
    unsigned stage = 0, parity = 0;
#pragma unroll 1
    for (; units > 0; --units, parity ^= 1) {
        const int sequence = place.sequence, head = place.head(args), first_row = place.first_row(args);
        const i64 slot = place.slot(step);
        Rule rule;
        rule.load(args, sequence, head);
        Io* output_at = place.at(step.output, head) + first_row + g;
        const bool exists = is_slot(step, slot);
        if (!exists) {
            const float x = slot >= step.slot_count && slot != step.null_slot ? quiet_nan() : 0.f;
#pragma unroll 1
            for (int row = t; row < 2 * args.tiles; row += 4) output_at[row * 8] = from_float<Io>(x);
        }
        const CodedStates to =
            place.state(args, step.state_out, slot * step.state_out_slot, step.scales_out, slot * step.scales_out_slot);
        place.advance(args);
        if (units > 1) copy_token(place, parity ^ 1);
        if (args.tiles > kConfig.stages)
            cp_async_wait<kConfig.stages>();
        else
            cp_async_wait<0>();
        __syncwarp();
        CodesToken<kConfig> token;
        token.make(shared.operand, shared.tokens[parity], step);
        rule.finish(args, token.scalars);
        const TokenScalars& scalars = token.scalars;
        const bool kept = !resets(scalars);
        signed char* codes_at = to.codes + g * kConfig.head_k + Products::column(0);
        float* scales_at = to.scales + g * kGroups + t / 2;
        const float key_scale = scalars.key_scale * kCodeSumUnit, query_scale = scalars.query_scale * kCodeSumUnit;
        const Io* values = reinterpret_cast<const Io*>(shared.tokens[parity].values) + g;
        const Io* gates = reinterpret_cast<const Io*>(shared.tokens[parity].gates) + g;

#pragma unroll 1
        for (int tile = 0; tile < args.tiles; ++tile) {
            cp_async_wait<kConfig.stages - 1>();
            __syncwarp();
            unsigned codes[2][kVectors][4];
            float scales[2][kGroups];
            const auto& from = shared.stages[stage];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
#pragma unroll
                for (int i = 0; i < kVectors; ++i) {
                    const uint4 words = *reinterpret_cast<const uint4*>(&from.codes[r][i][lane]);
                    codes[r][i][0] = words.x, codes[r][i][1] = words.y, codes[r][i][2] = words.z, codes[r][i][3] = words.w;
                }
                Vector<float, kGroups, true> row;
                row.load(kept ? from.scales[g + 8 * r]
                              : reinterpret_cast<const float*>(shared.operand.planes[CodeOperand<kConfig.head_k>::kZeroPlane]));
#pragma unroll
                for (int i = 0; i < kGroups; ++i) scales[r][i] = row[i];
            }
            stage = stage + 1 == kConfig.stages ? 0 : stage + 1;
            __syncwarp();
            fetch();
            if (!exists) continue;

            float sums[2], updates[2];
            Products::multiply(sums, shared.operand, codes, scales);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float value = to_float(values[8 * r]), with_key = __shfl_sync(0xffffffffu, sums[r], 0, 4) * key_scale,
                            correction = rule.correction(scalars, value, with_key);
                if (t == 2)
                    output_at[8 * r] = from_float<Io>(
                        rule.output(args, fmaf(correction, scalars.query_key, scalars.decay * (sums[r] * query_scale)), value,
                                    [&] { return to_float(gates[8 * r]); }));
                updates[r] = correction * scalars.key_scale;
            }
#pragma unroll
            for (int i = 0; i < kVectors; ++i) {
                float own[2];
#pragma unroll
                for (int r = 0; r < 2; ++r) own[r] = scalars.decay * (t < 2 ? scales[r][2 * i] : scales[r][2 * i + 1]);
                update(codes[0][i], codes[1][i], own, updates, token.key[i]);
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    if (t % 2 == 0) scales_at[8 * r * kGroups + 2 * i] = own[r];
                    Raw<16>{{codes[r][i][0], codes[r][i][1], codes[r][i][2], codes[r][i][3]}}.store_global(
                        codes_at + 8 * r * kConfig.head_k + 64 * i);
                }
            }
            values += kRows, output_at += kRows, gates += kRows;
            codes_at += kRows * kConfig.head_k, scales_at += kRows * kGroups;
        }
    }
    launch_dependent_grids();
}

}  // namespace gdn_cuda::gdn
