// What was measured to be the fastest choice on a device, for some problems: heuristics look here first. Who reads the
// measurements is tuned.hpp; to heuristics they are an argument, so that they stay pure functions.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "fields.hpp"

namespace gdn_cuda {

template <class Problem, class Choice>
struct Winner {
    Problem problem;
    Choice choice;
    double us, heuristic_us;  // measured: of this choice, and of the one that the heuristic makes without it
};

template <class Problem, class Choice>
struct Winners {
    std::vector<Winner<Problem, Choice>> all;  // a handful: a linear scan beats hashing
    mutable std::atomic<bool> used{false};     // whether one ever decided; how tuning knows that its trial was what ran
};

// `winners` is null on every machine where nothing was tuned: then this is one branch.
template <class Problem, class Choice>
const Winner<Problem, Choice>* find(const Winners<Problem, Choice>* winners, const Problem& problem) {
    if (winners == nullptr) [[likely]]
        return nullptr;
    for (const Winner<Problem, Choice>& winner : winners->all)
        if (winner.problem == problem) {
            if (!winners->used.load(std::memory_order_relaxed)) winners->used.store(true, std::memory_order_relaxed);
            return &winner;
        }
    return nullptr;
}

template <class Problem, class Choice>
std::string explain(const Winner<Problem, Choice>& winner) {
    return fmt::format("tuned on this device: {} took {:.2f} us, the heuristic's own choice {:.2f} us", to_text(winner.choice),
                       winner.us, winner.heuristic_us);
}

}  // namespace gdn_cuda
