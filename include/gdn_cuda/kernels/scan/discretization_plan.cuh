// Discretizations: how Ā and B̄ of x_t = Ā_t x_{t−1} + (B̄u)_t depend on step sizes. docs/scan.md has the table.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

enum class Discretization : int { mamba, zoh, bilinear, dirac, s7, rglru };

namespace scan {

inline constexpr int kMaxStates = 256;  // largest N of a selective scan and of its step

// What a kernel is compiled for; mamba and dirac differ in the input alone.
enum class Transition : int { exponential, zoh, bilinear, s7, rglru };

constexpr const char* word_of(Transition transition) {
    constexpr const char* kWords[] = {"scan::Transition::exponential", "scan::Transition::zoh", "scan::Transition::bilinear",
                                      "scan::Transition::s7", "scan::Transition::rglru"};
    const int value = static_cast<int>(transition);
    return value >= 0 && value < 5 ? kWords[value] : "?";
}

// Whether Ā and B̄ have step sizes of their own.
GDN_HOST_DEVICE constexpr bool has_size(Transition transition) {
    return transition == Transition::zoh || transition == Transition::bilinear;
}

GDN_HOST_DEVICE constexpr Transition transition_of(Discretization discretization) {
    switch (discretization) {
        case Discretization::zoh:
            return Transition::zoh;
        case Discretization::bilinear:
            return Transition::bilinear;
        case Discretization::s7:
            return Transition::s7;
        case Discretization::rglru:
            return Transition::rglru;
        default:
            return Transition::exponential;
    }
}

}  // namespace scan
}  // namespace gdn_cuda
