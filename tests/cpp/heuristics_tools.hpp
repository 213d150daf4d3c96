// What tests of heuristics share: random problems, devices, and what is registered.
#pragma once

#include <algorithm>
#include <cmath>
#include <gdn_cuda/kernels/common/types.cuh>
#include <initializer_list>
#include <random>

#include "jit/device.hpp"

namespace gdn_cuda {

constexpr int kProblems = 10'000;

class Random {
  public:
    // Small numbers as likely as large ones.
    i64 size(i64 most) { return static_cast<i64>(std::exp2(real_(engine_) * std::log2(static_cast<double>(most) + 1.0))); }
    template <class T>
    T one_of(std::initializer_list<T> choices) {
        return choices.begin()[std::uniform_int_distribution<size_t>(0, choices.size() - 1)(engine_)];
    }

  private:
    std::mt19937 engine_{20251121};
    std::uniform_real_distribution<double> real_{0.0, 1.0};
};

inline jit::DeviceTraits device_of(int multiprocessors) {
    jit::DeviceTraits device;
    device.multiprocessors = multiprocessors;
    return device;
}

bool in(const auto& all, const auto& config) {
    return std::ranges::find(all, config) != all.end();
}

}  // namespace gdn_cuda
