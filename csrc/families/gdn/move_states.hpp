// Host side of gdn/move_states: configuration and launch.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/gdn/move_states_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline const char* word_of(StatesMove move) {
    switch (move) {
        case StatesMove::gather:
            return "gdn::StatesMove::gather";
        case StatesMove::scatter:
            return "gdn::StatesMove::scatter";
        case StatesMove::first_before:
            return "gdn::StatesMove::first_before";
        case StatesMove::other_before:
            return "gdn::StatesMove::other_before";
        case StatesMove::at_offsets:
            return "gdn::StatesMove::at_offsets";
        case StatesMove::copy:
            return "gdn::StatesMove::copy";
        case StatesMove::identity:
            return "gdn::StatesMove::identity";
        case StatesMove::convert:
            return "gdn::StatesMove::convert";
    }
    return "?";
}

inline constexpr std::array kMoveStatesConfigurations = {MoveStatesConfig{StatesMove::gather},
                                                         MoveStatesConfig{StatesMove::scatter},
                                                         MoveStatesConfig{StatesMove::first_before},
                                                         MoveStatesConfig{StatesMove::other_before},
                                                         MoveStatesConfig{StatesMove::at_offsets},
                                                         MoveStatesConfig{StatesMove::copy},
                                                         MoveStatesConfig{StatesMove::identity},
                                                         MoveStatesConfig{StatesMove::convert},
                                                         MoveStatesConfig{StatesMove::gather, true},
                                                         MoveStatesConfig{StatesMove::first_before, true},
                                                         MoveStatesConfig{StatesMove::convert, true},
                                                         MoveStatesConfig{StatesMove::scatter, false, true},
                                                         MoveStatesConfig{StatesMove::convert, false, true},
                                                         MoveStatesConfig{StatesMove::convert, true, true}};

struct MoveStates {
    GDN_KERNEL(MoveStates, gdn, move_states, MoveStatesConfig, MoveStatesArgs,
               "states between pools or buffers of any dtype and strides and dense ones");

    static std::span<const Config> configurations() { return kMoveStatesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(StatesMove move, const Args& args, const Target& target) {
        const GdnCall& call = args.call;
        if (args.rows == 0 || call.heads == 0) return;
        const i64 tiles = ceil_div(call.dv, Config::kTile) * ceil_div(call.dk, Config::kTile);
        const MoveStatesConfig config{move, move_from(move, args).scales != nullptr, move_to(move, args).scales != nullptr};
        launch<MoveStates>(config, args, {tiles, call.heads, std::min<i64>(args.rows, kMostBlocks[2])}, target,
                           [&](const auto&) { return fmt::format("{} states of {} heads", args.rows, call.heads); });
    }
};

}  // namespace gdn_cuda::gdn
