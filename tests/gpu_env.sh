# For a GPU machine without network, by `source tests/gpu_env.sh`: unpacks .carry/, which tests/gpu_pack.sh made, once, and sets
# the environment of whatever runs there. Other libraries' packages go to $carried/site, which PYTHONPATH has.
carried=${TMPDIR:-/tmp}/gdn_cuda_carry
if [ -f .carry/carry.tar.xz ]; then
    if [ ! -f "$carried/unpacked" ] || [ .carry/carry.tar.xz -nt "$carried/unpacked" ]; then
        mkdir -p "$carried/site" && tar xJf .carry/carry.tar.xz -C "$carried"
        ! compgen -G ".carry/_C.*.so" >/dev/null || cp -u .carry/_C.*.so gdn_cuda/
        ! compgen -G ".carry/wheels/*.whl" >/dev/null ||
            "${PYTHON:-python3}" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$carried/site" .carry/wheels/*.whl
        touch "$carried/unpacked"
    fi
    export GDN_JIT_PREBUILT_DIR=$carried/prebuilt GDN_CUTLASS_INCLUDE=$carried/cutlass GDN_CCCL_INCLUDE=$carried/cccl
    if [ -z "$(ls "$carried/prebuilt")" ]; then
        echo "gpu_env.sh: the pack has no compiled kernels; compiling them will take most of the time" >&2
    fi
fi
case :${PYTHONPATH:-}: in
*":$carried/site:"*) ;;
*) export PYTHONPATH=$PWD:$carried/site${PYTHONPATH:+:$PYTHONPATH} ;;
esac
# NVLink multicast may put GPUs that others share out of service.
export PYTHONUNBUFFERED=1 NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
