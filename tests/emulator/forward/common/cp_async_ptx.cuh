#pragma once
#include <gdn_cuda/kernels/common/types.cuh>
namespace gdn_cuda {
// Delayed until the wait: what is read too early is NaN.
inline std::vector<std::vector<std::pair<void*, const void*>>>& copies() { static std::vector<std::vector<std::pair<void*, const void*>>> all(4096); return all; }
inline int& groups_of() { static int g[256]; return g[emu::current]; }
struct Pending { std::vector<std::vector<std::pair<void*, const void*>>> groups{1}; };
inline Pending& pending() { static Pending p[256]; return p[emu::current]; }
inline void cp_async_16(void* s, const void* g) { if ((uintptr_t)s % 16 || (uintptr_t)g % 16) throw std::runtime_error("cp.async alignment"); memset(s, 0xff, 16); pending().groups.back().push_back({s, g}); }
inline void cp_async_fence() { pending().groups.emplace_back(); }
template <int k> inline void cp_async_wait() { auto& g = pending().groups; while ((int)g.size() - 1 > k) { for (auto& [s, x] : g.front()) memcpy(s, x, 16); g.erase(g.begin()); } }
}
