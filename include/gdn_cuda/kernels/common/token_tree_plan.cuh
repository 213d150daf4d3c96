// What a tree of tokens may have; for host and device.
#pragma once

namespace gdn_cuda {

inline constexpr int kMostTreeTokens = 64;

}  // namespace gdn_cuda
