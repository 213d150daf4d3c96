cd /tmp/gated-emu
for f in rglru_common rglru rglru_backward rglru_plan; do cp /work/wt/gated/include/gdn_cuda/kernels/scan/$f.cuh gdn_cuda/kernels/scan/; done
sed -i 's/asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));/y = sqrtf(x);/; s/asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));/y = 1.f\/x;/' gdn_cuda/kernels/scan/rglru_common.cuh
sed -i 's/extern __shared__ __align__(16) unsigned char memory\[\];/unsigned char* memory = shared_memory;/' gdn_cuda/kernels/scan/rglru.cuh gdn_cuda/kernels/scan/rglru_backward.cuh
g++ -std=c++20 -O1 -shared -fPIC -pthread -w -I. -include emu.hpp driver.cpp -o emu.so 2>&1 | grep -E "error|undefined" | head -20
