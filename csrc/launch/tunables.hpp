// All kernels whose heuristic is worth tuning, sorted by their ids; the command `tune` reads this list. Each Tuning enters
// itself by its GDN_TUNING (tuned.hpp).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../jit/device.hpp"

namespace gdn_cuda {

// Problems and choices are in the text form of fields.hpp; malformed ones throw an Error.
struct Tunable {
    std::string kernel, problem;           // `problem`: an example, to show the form
    std::function<std::string()> version;  // of winners stored now; others are ignored
    std::function<std::vector<std::string>(const std::string& problem, const jit::DeviceTraits&)> candidates;
    std::function<std::string(const std::string& problem, const jit::DeviceTraits&)> explain;
    std::function<void(const std::string& problem, const std::string& choice, const jit::DeviceTraits&)> attempt;
    std::function<bool(int ordinal)> attempted;  // whether the attempted choice decided a call
    std::function<void()> forget;                // ends the attempt; the next call reads stored winners
};

struct RegisteredTuning {
    Tunable (*make)();
    const RegisteredTuning* next = nullptr;
};
void add_to_tunables(RegisteredTuning& tuning);

#pragma GCC visibility push(default)  // gdn_cuda._C calls them
const std::vector<Tunable>& tunables();
const Tunable& tunable(const std::string& kernel);
#pragma GCC visibility pop

}  // namespace gdn_cuda
