#include "csrc/families/scan/selective_backward.hpp"
#include "csrc/families/scan/selective_backward_sums.hpp"
namespace gdn_cuda { template <> void emulate(const scan::SelectiveBackwardConfig&, const scan::SelectiveBackwardArgs&, const Blocks&) { throw 1; } 
template <> void emulate(const scan::SelectiveBackwardSumsConfig&, const scan::SelectiveBackwardSumsArgs&, const Blocks&) { throw 1; } }
