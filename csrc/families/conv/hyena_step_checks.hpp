// Checks of hyena_fir_step and hyena_modal_step: inputs (B, D) or (B, D, T), and states in slots of a pool.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_step/plan.cuh>

#include "../../operators/packed.hpp"
#include "../../operators/state_slots.hpp"
#include "../../operators/tensor.hpp"

namespace gdn_cuda::conv {

struct HyenaStepChecks {
    Checks check;
    View like;  // the first input
    const char* like_name;
    bool tokens = like.rank == 3;

    void first() const {
        GDN_REQUIRE(check, like.rank == 2 || like.rank == 3, like_name, "(B, D), or (B, D, T)", shape_text(like));
        number(like_name, like);
    }
    void number(const char* argument, const View& view) const {
        check.dtype(argument, view, {DType::f32, DType::bf16, DType::f16});
        check.device(argument, view, like, like_name);
    }
    // An input or output like the first input.
    HyenaTokens rows(const char* argument, const View& view) const {
        GDN_REQUIRE(check, view.rank == like.rank && std::equal(view.sizes, view.sizes + view.rank, like.sizes), argument,
                    fmt::format("the shape of {} {}", like_name, shape_text(like)), shape_text(view));
        number(argument, view);
        return {tagged(view), view.stride(0), view.stride(1), tokens ? view.stride(2) : 0};
    }
    HyenaTokens output(const char* argument, const View& view) const {
        const HyenaTokens found = rows(argument, view);
        check.dtype(argument, view, {*dtype_of(like)});
        check.distinct(argument, view);
        return found;
    }
    // Checks (D,) and returns its stride.
    i64 per_channel(const char* argument, const View& view) const {
        check.shape(argument, view, {like.size(1)}, "(D,)");
        number(argument, view);
        return view.stride(0);
    }
    // Channels per group of parameters.
    int channels_of_group(const char* argument, const View& view) const {
        const int64_t groups = view.size(0), channels = like.size(1);
        const bool divides = channels == 0 ? groups == 0 : groups >= 1 && channels % groups == 0;
        GDN_REQUIRE(check, divides, argument, fmt::format("groups that divide the {} channels", channels), shape_text(view));
        return groups == 0 ? 1 : static_cast<int>(channels / groups);
    }
    void states(HyenaStepArgs& args, const char* argument, const View& states, const View& slots,
                const std::optional<int64_t>& null_slot) const {
        number(argument, states);
        check.distinct(argument, states);
        args.sequences = check.count(like_name, "sequences", like.size(0));
        args.channels = check.count(like_name, "channels", like.size(1));
        args.tokens = check.count(like_name, "tokens", tokens ? like.size(2) : 1, kMaxTokens);
        if (slots.defined()) {
            check_per_sequence(check, "state_indices", slots, {args.sequences, args.tokens, false, like, like_name});
        } else {
            GDN_REQUIRE(check, states.size(0) >= args.sequences, argument,
                        fmt::format("a slot for each of {} sequences, as state_indices is None", args.sequences),
                        shape_text(states));
        }
        args.states = states.data;
        args.state_type = *dtype_of(states);
        args.state_slot = states.stride(0);
        args.state_channel = states.stride(1);
        args.state_position = states.stride(2);
        args.slots = tagged(slots);
        args.slot_count = states.size(0);
        args.null_slot = check_null_slot(check, null_slot);
    }
};

}  // namespace gdn_cuda::conv
