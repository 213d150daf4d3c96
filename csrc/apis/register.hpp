// Registering operators: each comes with `validate_<name>`, the same checks and nothing else, which the CPU path
// (gdn_cuda/reference, in Python) calls first. So validation is written once.
#pragma once

#include <torch/csrc/stable/library.h>

#include <regex>
#include <string>

namespace gdn_cuda {

inline void define_checked(torch::stable::detail::StableLibrary& library, const std::string& name, const std::string& arguments,
                           const std::string& result) {
    library.def((name + "(" + arguments + ") -> " + result).c_str());
    const std::string read_only = std::regex_replace(arguments, std::regex("\\([a-z]!\\)"), "");
    library.def(("validate_" + name + "(" + read_only + ") -> ()").c_str());
}

template <auto kPrepare>
struct OnlyCheck;
template <class Result, class... Args, Result (*kPrepare)(Args...)>
struct OnlyCheck<kPrepare> {
    static void run(Args... args) { kPrepare(args...); }
};

}  // namespace gdn_cuda
