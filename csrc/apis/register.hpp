// Registering operators: each comes with `validate_<name>`, the same checks and nothing else, which the CPU path
// (gdn_cuda/reference, in Python) calls first. So validation is written once.
#pragma once

#include <torch/csrc/stable/library.h>

#include <string>

namespace gdn_cuda {

inline void define_checked(torch::stable::detail::StableLibrary& library, const std::string& name, const std::string& arguments,
                           const std::string& result) {
    library.def((name + "(" + arguments + ") -> " + result).c_str());
    std::string read_only = arguments;
    for (size_t at; (at = read_only.find("!)")) != std::string::npos;) read_only.erase(at - 2, 4);  // "(a!)"
    library.def(("validate_" + name + "(" + read_only + ") -> ()").c_str());
}

template <auto kPrepare>
struct OnlyCheck;
template <class Result, class... Args, Result (*kPrepare)(Args...)>
struct OnlyCheck<kPrepare> {
    static void run(Args... args) { kPrepare(args...); }
};

}  // namespace gdn_cuda
