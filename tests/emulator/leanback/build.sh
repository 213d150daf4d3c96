set -e
cd /tmp/leanback-emu
W=/work/wt/leanback; T=$W/.venv/lib/python3.12/site-packages/torch
for f in $W/csrc/families/scan/*; do cp $f csrc/families/scan/; done
# shared memory and barriers: `extern __shared__ memory` is one array
CU=$(ls -d $W/.venv/lib/python3.12/site-packages/nvidia/cu13/include)
mkdir -p include/gdn_cuda/kernels/scan
for f in $W/include/gdn_cuda/kernels/scan/*.cuh; do sed 's/extern __shared__ __align__(16) unsigned char memory\[\];/extern unsigned char memory[];/; s/__shared__//' $f > include/gdn_cuda/kernels/scan/$(basename $f); done
python3 four.py
FLAGS="-std=c++20 -O1 -g1 -fPIC -w -Iinclude -I$W/include -I$T/include -I$CU -DTORCH_TARGET_VERSION=0x020a000000000000 -DFMT_HEADER_ONLY=1 -fpermissive"
g++ $FLAGS -c emulate.cpp -o emulate.o &
g++ $FLAGS -c csrc/families/scan/selective_scan.cpp -o selective_scan.o
for f in families/scan/selective operators/tensor operators/packed; do [ -f $(basename $f).o ] && [ $(basename $f).o -nt $W/csrc/$f.cpp ] || g++ $FLAGS -c csrc/$f.cpp -o $(basename $f).o; done
[ -f forward_stub.o ] || g++ $FLAGS -c forward_stub.cpp -o forward_stub.o
wait
g++ -shared -o emu.so emulate.o forward_stub.o selective_scan.o selective.o tensor.o packed.o -L$T/lib -ltorch_cpu -lc10 -Wl,-rpath,$T/lib
