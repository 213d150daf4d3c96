// libcuda, opened at first use. Tests install their own table.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

namespace gdn_cuda::jit {

struct Driver {
    CUresult (*init)(unsigned);
    CUresult (*driver_version)(int*);
    CUresult (*get_error_string)(CUresult, const char**);
    CUresult (*device_count)(int*);
    CUresult (*device_get)(CUdevice*, int);
    CUresult (*device_name)(char*, int, CUdevice);
    CUresult (*device_attribute)(int*, CUdevice_attribute, CUdevice);
    CUresult (*device_memory)(std::size_t*, CUdevice);
    CUresult (*ctx_get_current)(CUcontext*);
    CUresult (*ctx_set_current)(CUcontext);
    CUresult (*primary_ctx_retain)(CUcontext*, CUdevice);
    CUresult (*primary_ctx_release)(CUdevice);
    CUresult (*exchange_capture_mode)(CUstreamCaptureMode*);  // of the calling thread
    CUresult (*library_load_data)(CUlibrary*, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned);
    CUresult (*library_unload)(CUlibrary);
    CUresult (*library_get_kernel)(CUkernel*, CUlibrary, const char*);
    CUresult (*kernel_get_function)(CUfunction*, CUkernel);  // loads a lazily loaded kernel
    CUresult (*kernel_set_attribute)(CUfunction_attribute, int, CUkernel, CUdevice);
    CUresult (*stream_is_capturing)(CUstream, CUstreamCaptureStatus*);
    CUresult (*tensor_map_encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                                  const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    CUresult (*memset_words)(CUdeviceptr, unsigned, std::size_t, CUstream);
    CUresult (*launch)(const CUlaunchConfig*, CUfunction, void**, void**);
    CUresult (*most_clusters)(int*, CUfunction, const CUlaunchConfig*);
    CUresult (*stream_get_attribute)(CUstream, CUstreamAttrID, CUstreamAttrValue*);
    CUresult (*stream_set_attribute)(CUstream, CUstreamAttrID, const CUstreamAttrValue*);
    CUresult (*ctx_get_limit)(std::size_t*, CUlimit);
    CUresult (*ctx_set_limit)(CUlimit, std::size_t);
    CUresult (*ctx_reset_persisting_l2)();
};

const Driver& driver();  // throws an Error that says what to install if there is no driver
bool driver_available(std::string* why_not = nullptr);
void install_driver(const Driver* table);  // for tests; nullptr restores the real driver
void check(CUresult result, const char* call);

}  // namespace gdn_cuda::jit
