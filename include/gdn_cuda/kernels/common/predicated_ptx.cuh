// Loads and stores under a predicate, in inline PTX: branches around many of them take NVRTC long to compile.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

// If !exists, x is unchanged.
__device__ __forceinline__ void load_if(bool exists, unsigned& x, const unsigned* from) {
    asm volatile("{\n.reg .pred exists;\nsetp.ne.u32 exists, %1, 0;\n@exists ld.global.u32 %0, [%2];\n}"
                 : "+r"(x)
                 : "r"(static_cast<unsigned>(exists)), "l"(from));
}
__device__ __forceinline__ void load_if(bool exists, unsigned& x, const unsigned short* from) {
    asm volatile("{\n.reg .pred exists;\nsetp.ne.u32 exists, %1, 0;\n@exists ld.global.u16 %0, [%2];\n}"
                 : "+r"(x)
                 : "r"(static_cast<unsigned>(exists)), "l"(from));
}
__device__ __forceinline__ void store_if(bool exists, unsigned* to, unsigned x) {
    asm volatile("{\n.reg .pred exists;\nsetp.ne.u32 exists, %0, 0;\n@exists st.global.u32 [%1], %2;\n}" ::"r"(
                     static_cast<unsigned>(exists)),
                 "l"(to), "r"(x)
                 : "memory");
}
__device__ __forceinline__ void store_if(bool exists, unsigned short* to, unsigned x) {
    asm volatile("{\n.reg .pred exists;\nsetp.ne.u32 exists, %0, 0;\n@exists st.global.u16 [%1], %2;\n}" ::"r"(
                     static_cast<unsigned>(exists)),
                 "l"(to), "r"(x)
                 : "memory");
}

}  // namespace gdn_cuda
