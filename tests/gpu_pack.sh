#!/usr/bin/env bash
# tests/gpu_pack.sh [REQUIREMENT...]: makes .carry/ for tests/gpu_session.sh, in five minutes on two cores and without a GPU.
#
# carry.tar.xz has every kernel compiled for ARCH (sm_90a), and the headers of CUTLASS and libcu++ that they were compiled with. The
# requirements are wheels to carry as well (transformers==5.24.0), without what they depend on. What ./develop.sh built goes along,
# for the GPU machine's Python: .carry has _C.*.so, and gdn_cuda/lib goes beside it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
made=.carry/made
mkdir -p "$made"
read -r cutlass cccl < <("$python" -c 'import gdn_cuda.paths as p; found = p.find_paths(); print(found["cutlass_include"], found["cccl_include"])')

rm -rf "$made/cutlass" "$made/cccl"
mkdir "$made/cutlass" "$made/cccl"
cp -r "$cutlass"/{cutlass,cute} "$made/cutlass"
cp -r "$cccl"/{cuda,nv} "$made/cccl"
export GDN_CUTLASS_INCLUDE=$PWD/$made/cutlass GDN_CCCL_INCLUDE=$PWD/$made/cccl  # a kernel's key has their identity
# The log is not beside cccl, whose parent is an include folder too: a growing log there would change kernels' keys.
"$python" -m gdn_cuda compile --arch "${ARCH:-sm_90a}" --out "$made/prebuilt" | tee .carry/compile.log
slow=$(grep "bytes spilled" .carry/compile.log | grep -v " 0 bytes spilled, 0 bytes of stack$" || true)
cp gdn_cuda/_C.*.so .carry/
tar cf - -C "$made" prebuilt cutlass cccl | xz -T0 -3 >.carry/carry.tar.xz
if [ $# -gt 0 ]; then
    rm -rf .carry/wheels
    "$python" -m pip download -q --no-deps --only-binary=:all: --dest .carry/wheels "$@"
fi
du -sh .carry/carry.tar.xz
if [ -n "$slow" ]; then
    echo "$slow"
    echo "gpu_pack.sh: the pack is made; expected no spills, no stack and no serialized wgmmas, got those above" >&2 && exit 1
fi
