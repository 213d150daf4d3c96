// scan/selective_step_tokens: where the states of a sequence's tokens start and go, and the recurrence over them.
#pragma once

#include <gdn_cuda/kernels/common/token_tree.cuh>
#include <gdn_cuda/kernels/scan/selective_step/recurrence.cuh>
#include <gdn_cuda/kernels/scan/selective_step/rows.cuh>

namespace gdn_cuda::scan {

// Zeros for the row's outputs of tokens after the last sequence, every lanes-th from `first` on.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void clear_outputs(const SelectiveStepArgs& args, const StepLane<kConfig>& mine, i64 first) {
    if (!mine.exists) return;
    char* row = static_cast<char*>(const_cast<void*>(args.out.values.data)) + mine.head * args.out.head + mine.d * args.out.d;
#pragma unroll 1
    for (i64 token = first; token < args.tokens; token += mine.lanes)
        store_float(row + token * args.out.item, args.x.values.type, 0.f);
}

// An item's `later`, if it is a token without a state: its output is NaN.
__device__ __forceinline__ const void* no_state() {
    return reinterpret_cast<const void*>(~i64{0});
}

// Where the states of the current items start (`later`; nullptr: from registers) and go. In a tree by one thread, as whether a
// token has a state depends on those before it.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void find_places(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                            const StepItems& items, Tree& tree) {
    const int thread = static_cast<int>(threadIdx.x), sequence = items.first_sequence;
    const void* const from = shared.from[0];
    if (args.parents.data == nullptr || from == nullptr) {
        if (thread >= items.count) return;
        shared.items[thread].later = nullptr;
        shared.items[thread].to = kept_state<kConfig>(args, from, sequence, items.token(thread));
        return;
    }
    if (thread > 0) return;
#pragma unroll 1
    for (int i = 0; i < items.count; ++i) {
        auto& item = shared.items[i];
        item.later = nullptr;
        const Tree::Start start = tree.next(args, sequence, items.token(i), [&](int parent) {
            item.later = kept_state<kConfig>(args, from, sequence, parent);
            return item.later != nullptr;
        });
        if (start == Tree::from_slot) item.later = from;
        if (start == Tree::nowhere) item.later = no_state();
        item.to = start == Tree::nowhere ? nullptr : kept_state<kConfig>(args, from, sequence, items.token(i));
    }
}

// Advances the state by the current items; each lane's Σ C x goes to shared memory.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void advance_tokens(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                               const StepLane<kConfig>& lane, const StepItems& items,
                                               const typename StepTypes<kConfig>::Number (&A)[kConfig.elements()],
                                               typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    if (!lane.works(args.columns)) {
#pragma unroll 1
        for (int item = 0; item < items.count; ++item)
            shared.items[item].sum[threadIdx.x] = shared.items[item].later == no_state() ? quiet_nan() : 0.f;
        return;
    }
    with_step<kConfig>(args, [&]<bool kTied>(const auto& step_of) {
        const i64 offset = lane.state_offset(args);
        auto* next = shared.items;
#pragma unroll 1
        for (int item = 0; item < items.count; ++item) {
            auto& at = *next++;
            const void* const start = at.later;
            if (start == no_state()) {
                at.sum[threadIdx.x] = quiet_nan();
                continue;
            }
            if (!is_null(start)) read_state<kConfig>(start, lane, offset, args.columns, state);
            at.sum[threadIdx.x] = advance_item<kTied>(step_of, at, lane, args.columns, A, state);
            store_state<kConfig>(at.to, lane, offset, args.columns, state);
        }
    });
}

}  // namespace gdn_cuda::scan
