// The CUTLASS headers of tensor-core kernels for sm_80 and up: ldmatrix and movmatrix (sm_75), cp.async and mma.sync.
#pragma once

// libcu++'s type lists, unused here, are unrolled ten deep for nvcc but sixteen for NVRTC, which it does not know; parsing them
// would be half of the parse time of all these headers.
#if defined(__CUDACC_RTC__) && !defined(_CCCL_META_UNROLL_LIMIT)
#define _CCCL_META_UNROLL_LIMIT 10
#endif

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm80.hpp>
