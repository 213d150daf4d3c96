// Every kernel whose heuristic has a choice worth measuring, one line each in tunables.cpp; the command `tune` reads this list.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../jit/device.hpp"

namespace gdn_cuda {

// Problems and choices are texts here, as fields.hpp writes them; an Error names one that is not.
struct Tunable {
    std::string kernel, problem;           // `problem`: one as it is written, to show the form
    std::function<std::string()> version;  // of what is stored now; what is stored under another one is ignored
    std::function<std::vector<std::string>(const std::string& problem, const jit::DeviceTraits&)> candidates;
    std::function<std::string(const std::string& problem, const jit::DeviceTraits&)> explain;
    std::function<void(const std::string& problem, const std::string& choice, const jit::DeviceTraits&)> attempt;
    std::function<bool(int ordinal)> attempted;  // whether the choice that is attempted decided a call
    std::function<void()> forget;                // ends the attempt; the next call reads what is stored
};

#pragma GCC visibility push(default)  // gdn_cuda._C calls them
const std::vector<Tunable>& tunables();
const Tunable& tunable(const std::string& kernel);
#pragma GCC visibility pop

}  // namespace gdn_cuda
