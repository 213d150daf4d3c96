#include "csrc/families/scan/selective_forward.hpp"
namespace gdn_cuda { template <> void emulate(const scan::SelectiveForwardConfig&, const scan::SelectiveForwardArgs&, const Blocks&) { throw 1; } }
