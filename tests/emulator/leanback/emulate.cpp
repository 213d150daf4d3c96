#include <cuda_emulation.hpp>
#include <gdn_cuda/kernels/common/types.cuh>
#undef GDN_HOST_DEVICE
#define GDN_HOST_DEVICE inline
#include "launch.hpp"
#define SelectiveBackward SelectiveBackwardSpec
#define SelectiveBackwardSums SelectiveBackwardSumsSpec
#include "csrc/families/scan/selective_backward.hpp"
#include "csrc/families/scan/selective_backward_sums.hpp"
namespace gdn_cuda {
namespace scan { alignas(16) unsigned char memory[1 << 18]; }
namespace jit { 
const DeviceTraits& device_traits(int) { static DeviceTraits traits{}; if (const char* s = getenv("EMU_SMS")) traits.multiprocessors = atoi(s); return traits; } }
template <class F> void over_grid(const Blocks& blocks, int threads, F f) {
    emu::body = f;
    emu::grid = {(unsigned)blocks[0], (unsigned)blocks[1], 1};
    for (unsigned y = 0; y < emu::grid.y; ++y) for (unsigned x = 0; x < emu::grid.x; ++x) {
        emu::block = {x, y, 0};
        for (size_t i = 0; i + 4 <= sizeof(scan::memory); i += 4) { float n = NAN; memcpy(scan::memory + i, &n, 4); }
        emu::run_block(threads);
    }
}
template <size_t I> void one(const scan::SelectiveBackwardConfig& c, const scan::SelectiveBackwardArgs& args, const Blocks& b) {
    if (c == scan::kSelectiveBackwardConfigurations[I]) over_grid(b, c.kThreads, [&] { scan::selective_backward<scan::kSelectiveBackwardConfigurations[I]>(args); });
}
template <> void emulate(const scan::SelectiveBackwardConfig& c, const scan::SelectiveBackwardArgs& args, const Blocks& b) {
    [&]<size_t... I>(std::index_sequence<I...>) { (one<I>(c, args, b), ...); }(std::make_index_sequence<scan::kSelectiveBackwardConfigurations.size()>());
}
template <> void emulate(const scan::SelectiveBackwardSumsConfig& c, const scan::SelectiveBackwardSumsArgs& args, const Blocks& b) {
    over_grid(b, c.threads, [&] { scan::selective_backward_sums<scan::SelectiveBackwardSums::kConfigurations[0]>(args); });
}
}
#include <string>
namespace gdn_cuda { bool explaining() { return false; } namespace jit { std::string readable(const std::string& x) { return x; } } }
