// How a step of a scan follows from its step size: x_t = Ā_t x_{t−1} + (B̄u)_t. docs/scan.md has the table of Ā and B̄.
#pragma once

namespace gdn_cuda {

enum class Discretization : int { mamba, zoh, bilinear, dirac, s7, rglru };

}  // namespace gdn_cuda
