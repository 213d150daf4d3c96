// How the operators' host code launches a kernel in the emulator.
#pragma once

#include <array>
#include <string>

namespace emulator {

struct Shape {
    std::array<unsigned, 3> grid;
    unsigned threads, shared_bytes;
    unsigned cluster = 1;  // blocks along x
};
// Throws std::runtime_error for an error of the kernel.
void launch(const std::string& kernel, const std::string& configuration, const Shape& shape, const void* args);

}  // namespace emulator
