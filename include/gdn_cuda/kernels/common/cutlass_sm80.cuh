// The CUTLASS headers of tensor-core kernels for sm_80 and up: ldmatrix and movmatrix (sm_75), cp.async and mma.sync.
#pragma once

// libcu++ unrolls its type lists, unused here, ten deep for nvcc but sixteen deep for NVRTC, which it does not recognise.
// Parsing sixteen would take half of the parse time of all these headers.
#if defined(__CUDACC_RTC__) && !defined(_CCCL_META_UNROLL_LIMIT)
#define _CCCL_META_UNROLL_LIMIT 10
#endif

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm80.hpp>
