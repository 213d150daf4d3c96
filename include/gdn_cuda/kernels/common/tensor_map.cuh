// The driver's TMA tensor map (CUtensorMap) as a kernel argument, for host and device.
#pragma once

namespace gdn_cuda {

struct alignas(64) TensorMap {
    unsigned char opaque[128];
};

}  // namespace gdn_cuda
