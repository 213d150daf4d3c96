// A value warpgroup's rows of the state in gdn/prefill, held in registers; loaded from and stored to the caller's tensors, or
// passed between the segments of a sequence (prefill_segments.cuh).
#pragma once

#include <gdn_cuda/kernels/chunked/summary.cuh>

namespace gdn_cuda::gdn {

// PlanType: the block's shared memory.
template <PrefillConfig kConfig, class PlanType = PrefillSharedPlan<kConfig>>
struct PrefillState : Lane {
    static constexpr DType kIo = kConfig.io;
    static constexpr int kStateSteps = kConfig.head_k / 16, kTokenSteps = kChunk / 16;

    using Plan = PlanType;

    Plan& shared;
    const PrefillArgs& args;
    const PrefillWork& work;

    float state[kConfig.head_k / 2];
    unsigned rounded_state[kStateSteps][4];

    __device__ __forceinline__ PrefillState(Plan& shared, const PrefillArgs& args, const PrefillWork& work)
        : shared(shared), args(args), work(work) {
        find_lane();
    }

    __device__ __forceinline__ int index() const {  // among the value warpgroups
        return kConfig.value_groups == 1 ? 0 : group - kConfig.first_value_group();
    }

    __device__ __forceinline__ bool is_pass(PrefillPass pass) const {
        return kConfig.linked ? work.pass == pass : pass == PrefillPass::outputs;
    }

    // This warp has read the stage.
    __device__ __forceinline__ void release(int stage) const {
        __syncwarp();
        if (lane == 0) barrier(shared.done[stage]).arrive();
    }

    // Whether `found` holds for any thread of this warpgroup.
    __device__ __forceinline__ bool any_of_group(bool found) const {
        const int number = NamedBarrier::ReservedNamedBarrierCount + kWarpgroupBarrier + group;
        // The shuffle makes the result warp-uniform for the compiler.
        return __shfl_sync(0xffffffffu, named_barrier_or(kWarpgroup, number, found), 0);
    }

    // The thread's other row is 8 further.
    __device__ __forceinline__ int my_row() const { return work.first_row + index() * kValueRows + 16 * warp + g; }

    // One head's state in memory.
    struct StatePlace {
        void* data = nullptr;
        DType type = DType::f32;  // or bf16
    };
    // A thread holds rows g and g + 8 of its warp's 16, columns 8 n + 2 t and + 1. Calls visit(pair of elements, their address)
    // for those in range.
    template <class T, class Visit>
    __device__ __forceinline__ void for_each_pair(T* numbers, Visit&& visit) {
        const int dk = args.recurrence.dk;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = my_row() + 8 * half;
            T* at = numbers + static_cast<i64>(row) * dk + 2 * t;
#pragma unroll
            for (int n = 0; n < kConfig.head_k / 8; ++n)
                if (row < work.rows && 8 * n < dk) visit(state[4 * n + 2 * half], state[4 * n + 2 * half + 1], at + 8 * n);
        }
    }
    __device__ __forceinline__ StatePlace of_this_head(const void* states) const {
        const i64 before = static_cast<i64>(work.head) * args.recurrence.dv * args.recurrence.dk;
        auto* data = static_cast<char*>(const_cast<void*>(states));
        return {data == nullptr ? nullptr : data + before * bytes_of(args.state), args.state};
    }
    __device__ __forceinline__ StatePlace first() const {
        const char* data = static_cast<const char*>(args.recurrence.initial.data);
        return of_this_head(data == nullptr || !work.begins ? nullptr : data + work.initial_slot * bytes_of(args.state));
    }
    __device__ __forceinline__ StatePlace last() const {
        const char* data = static_cast<const char*>(args.recurrence.last.data);
        return of_this_head(data == nullptr || !work.ends ? nullptr : data + work.last_slot * bytes_of(args.state));
    }
    // Where the state after a chunk is stored as a checkpoint, if it is.
    __device__ __forceinline__ StatePlace checkpoint(int chunk) const {
        if (chunk < work.first_output || (chunk + 1) * kChunk > work.length) return {};
        const int token = work.tokens_before + (chunk + 1) * kChunk - 1;
        const auto step = [&]<class T>(T) {
            return static_cast<const void*>(step_state<T>(args.recurrence, work.sequence, work.checkpoints_before, token));
        };
        return of_this_head(args.state == DType::f32 ? step(float{}) : step(__nv_bfloat16{}));
    }
    __device__ __forceinline__ void load_state(const StatePlace& from) {
#pragma unroll
        for (float& x : state) x = 0.f;
        if (from.data == nullptr) return;
        if (from.type == DType::f32)
            for_each_pair(static_cast<const float*>(from.data), [](float& x, float& y, const float* at) {
                const float2 pair = pair_at(at);
                x = pair.x;
                y = pair.y;
            });
        else
            for_each_pair(static_cast<const __nv_bfloat16*>(from.data), [](float& x, float& y, const __nv_bfloat16* at) {
                const float2 pair = unpack<DType::bf16>(*reinterpret_cast<const unsigned*>(at));
                x = pair.x;
                y = pair.y;
            });
    }
    __device__ __forceinline__ void store_state(const StatePlace& to) {
        if (to.data == nullptr) return;
        if (to.type == DType::f32)
            for_each_pair(static_cast<float*>(to.data),
                          [](float& x, float& y, float* at) { *reinterpret_cast<float2*>(at) = {x, y}; });
        else
            for_each_pair(static_cast<__nv_bfloat16*>(to.data), [](float& x, float& y, __nv_bfloat16* at) {
                *reinterpret_cast<unsigned*>(at) = pack<DType::bf16>(x, y);
            });
    }

    // Linked states and rows of M are padded to whole blocks of rows and columns: no bounds checks.
    __device__ __forceinline__ float2* linked_state(i64 link) const {
        const i64 rows = static_cast<i64>(gridDim.x) * kConfig.rows_per_block();
        return reinterpret_cast<float2*>(args.links.states + (link * rows + my_row()) * kConfig.head_k) + t;
    }
    static constexpr int kToNextEight = 8 * kConfig.head_k / 2;  // 8 rows, in float2
    __device__ __forceinline__ void load_linked(i64 link) {
        const float2* from = linked_state(link);
#pragma unroll
        for (int i = 0; i < kConfig.head_k / 2; i += 2) {
            const float2 pair = from[i % 4 / 2 * kToNextEight + i / 4 * 4];
            state[i] = pair.x;
            state[i + 1] = pair.y;
        }
    }
    __device__ __forceinline__ void store_linked(i64 link) const {
        float2* to = linked_state(link);
#pragma unroll
        for (int i = 0; i < kConfig.head_k / 2; i += 2) to[i % 4 / 2 * kToNextEight + i / 4 * 4] = {state[i], state[i + 1]};
    }
    // A thread's pairs of elements of M, rounded; kPairs further, the rounding residuals.
    static constexpr int kPairs = kConfig.head_k / 2;
    __device__ __forceinline__ unsigned* transfer_rows(i64 link) const {
        constexpr int kRows = kConfig.key_tiles() * kChunk;
        return static_cast<unsigned*>(args.links.transfers) + (link * kRows + my_row()) * 2 * kPairs + t;
    }
    static constexpr __device__ int transfer_at(int i) { return i % 4 / 2 * 16 * kPairs + i / 4 * 4; }
    __device__ __forceinline__ void store_transfer() const {
        unsigned* to = transfer_rows(work.link);
#pragma unroll
        for (int i = 0; i < kConfig.head_k / 2; i += 2) {
            const unsigned rounded = pack<DType::bf16>(state[i], state[i + 1]);
            unsigned* at = to + transfer_at(i);
            at[0] = rounded;
            at[kPairs] = pack_rest<DType::bf16>(state[i], state[i + 1], rounded);
        }
    }
    __device__ __forceinline__ void load_transfer_rows(i64 link) {
        const unsigned* from = transfer_rows(link);
#pragma unroll
        for (int i = 0; i < kConfig.head_k / 2; i += 2) {
            const unsigned* at = from + transfer_at(i);
            const float2 rounded = unpack<DType::bf16>(at[0]), rest = unpack<DType::bf16>(at[kPairs]);
            state[i] = rounded.x + rest.x;
            state[i + 1] = rounded.y + rest.y;
        }
    }
    __device__ __forceinline__ void set_identity() {
#pragma unroll
        for (int i = 0; i < kConfig.head_k / 2; ++i)
            state[i] = my_row() + i % 4 / 2 * 8 == i / 4 * 8 + 2 * t + i % 2 ? 1.f : 0.f;
    }
    __device__ __forceinline__ void round_state() {
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                rounded_state[step][i] = pack<kIo>(state[8 * step + 2 * i], state[8 * step + 2 * i + 1]);
    }

    __device__ __forceinline__ void signal_initial_state_read() const {
        if (kConfig.persistent || args.readers == nullptr || !is_pass(PrefillPass::outputs)) return;
        warpgroup_sync();
        if (thread == 0) red_release(readers_of(args, work));
    }
    __device__ __forceinline__ void signal_state_written() const {
        if (!kConfig.linked || work.to < 0 || is_pass(PrefillPass::link)) return;
        warpgroup_sync();
        if (thread > 0) return;
        red_release(is_pass(PrefillPass::outputs) ? have_state(args.links, work.to) : args.links.have_summary + work.to);
    }

    // The stage that holds a piece of a link's M, once it is there.
    __device__ __forceinline__ const auto& await_map(int link, int part) const {
        const PieceOfMap<kConfig> piece(link, part);
        barrier(shared.loaded[piece.stage]).wait(piece.parity);
        return shared.stages[piece.stage];
    }
    // After a reset M is 0, and S M must be 0 even where S is not finite.
    __device__ __forceinline__ void clear_state_if_transfer_is_zero(int link) {
        float sums[4]{};  // NaN if an element is not finite
#pragma unroll
        for (int i = 0; i < kConfig.head_k / 2; ++i) sums[i % 4] = fmaf(state[i], 0.f, sums[i % 4]);
        if (!any_of_group(isnan(sums[0] + sums[1] + (sums[2] + sums[3])))) return;
        constexpr int kPieces = sizeof(PrefillTile) / sizeof(uint4);
        unsigned bits = 0;
#pragma unroll 1
        for (int part = 0; part < kConfig.key_tiles(); ++part) {
            const auto* tiles = reinterpret_cast<const uint4*>(await_map(link, part).key[0].bytes);
#pragma unroll 1
            for (int i = thread; i < kConfig.key_tiles() * kPieces; i += kWarpgroup) {
                const uint4 x = tiles[i];
                bits |= (x.x | x.y | x.z | x.w) & 0x7fff7fffu;
            }
        }
        if (any_of_group(bits != 0)) return;
#pragma unroll
        for (float& s : state) s = 0.f;
    }
    // Replaces S by S M + L, or rows of another M by their product. In bf16 for every input type: fp16 would flush a decay of
    // 2^-25 to 0.
    __device__ __forceinline__ void apply_link(int link) {
        constexpr int kPieces = kConfig.key_tiles();
        clear_state_if_transfer_is_zero(link);
        unsigned rounded[kStateSteps][4], rest[kStateSteps][4];
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float x = state[8 * step + 2 * i], next = state[8 * step + 2 * i + 1];
                rounded[step][i] = pack<DType::bf16>(x, next);
                rest[step][i] = pack_rest<DType::bf16>(x, next, rounded[step][i]);
            }
        await_map(link, 0);  // the thread that has loaded it had waited for L, too
        if (is_pass(PrefillPass::group_transfer))
#pragma unroll
            for (float& x : state) x = 0.f;
        else
            load_linked(link_to_follow(work, link));
        await_map(link, kPieces - 1);
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step) {
            const auto& stage = shared.stages[PieceOfMap<kConfig>(link, step / kTokenSteps).stage];
            const auto m = tile_operand(stage.key, sizeof(PrefillTile)) + mn_major_step(step % kTokenSteps),
                       m_rest = tile_operand(stage.query, sizeof(PrefillTile)) + mn_major_step(step % kTokenSteps);
            Product<DType::bf16, kConfig.head_k, false>::run(state, rest[step], m, true);
            Product<DType::bf16, kConfig.head_k, false>::run(state, rounded[step], m_rest, true);
            Product<DType::bf16, kConfig.head_k, false>::run(state, rounded[step], m, true);
            if ((step + 1) % kTokenSteps == 0 || step + 1 == kStateSteps) cute::warpgroup_commit_batch();
        }
        cute::warpgroup_wait<kPieces - 1>();
        release(PieceOfMap<kConfig>(link, 0).stage);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(state);
        if (kPieces > 1) release(PieceOfMap<kConfig>(link, kPieces - 1).stage);
    }
    // From the state after the first segment to the one before this segment. Every block repeats the links before its own: all
    // wait for the same summaries anyway, and the state stays in registers. Or from a group's first segment to its last.
    __device__ __forceinline__ void follow_links() {
#pragma unroll 1
        for (int link = 0; link < links_to_follow(work); ++link) apply_link(link);
    }
    __device__ __forceinline__ void skip_links() const {
#pragma unroll 1
        for (int link = 0; link < links_to_follow(work); ++link)
#pragma unroll 1
            for (int part = 0; part < kConfig.key_tiles(); ++part) {
                await_map(link, part);
                release(PieceOfMap<kConfig>(link, part).stage);
            }
    }
    __device__ __forceinline__ bool follows_links() const { return kConfig.linked && links_to_follow(work) > 0; }
    __device__ __forceinline__ void begin() {
        if (kConfig.linked && work.from >= 0) {
            const bool of_group = is_pass(PrefillPass::group_transfer) || is_pass(PrefillPass::group_summary);
            if (thread == 0 && of_group)
                await_summary<kConfig>(args.links, work.from, gridDim.x);
            else if (thread == 0 && work.from < args.links.all)
                await_state<kConfig>(args.links, work.from);
            warpgroup_sync();
            if (is_pass(PrefillPass::group_transfer))
                load_transfer_rows(work.from);
            else
                load_linked(work.from);
            follow_links();
        } else if (is_pass(PrefillPass::transfer)) {
            set_identity();
        } else {
            load_state(first());
        }
        signal_initial_state_read();
        warpgroup_fence_operand(state);  // otherwise each branch above gets registers of its own, and spills
        round_state();
    }
    // Stores the pass's result.
    __device__ __forceinline__ void end() {
        find_lane();
        if (!kConfig.persistent && is_pass(PrefillPass::outputs) && work.ends && args.readers != nullptr) {
            if (thread == 0) wait_for_count(readers_of(args, work), work.readers);
            warpgroup_sync();
        }
        if (is_pass(PrefillPass::transfer) || is_pass(PrefillPass::group_transfer))
            store_transfer();
        else if (kConfig.linked && work.to >= 0)
            store_linked(work.to);
        else
            store_state(last());
        signal_state_written();
    }
};

}  // namespace gdn_cuda::gdn
