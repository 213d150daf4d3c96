// Winners: the choices measured fastest on a device, for some problems; heuristics consult them first. tuned.hpp reads them
// from disk and passes them as an argument, so that heuristics stay pure functions.
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
    double us, heuristic_us;  // measured times of this choice and of the heuristic's
};

template <class Problem, class Choice>
struct Winners {
    std::vector<Winner<Problem, Choice>> all;  // few: a linear scan beats hashing
    mutable std::atomic<bool> used{false};     // whether one ever decided; tells tuning that its trial ran
};

// Null `winners`, as on every machine without tuning, costs one branch.
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
