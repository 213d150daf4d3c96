// The CUTLASS headers of the Hopper kernels: narrow ones, each wrapping one or a few instructions.
#pragma once

// libcu++'s type lists, unused here, are unrolled ten deep for nvcc but sixteen for NVRTC, which it does not know; parsing them
// would be half of the parse time of all these headers.
#if defined(__CUDACC_RTC__) && !defined(_CCCL_META_UNROLL_LIMIT)
#define _CCCL_META_UNROLL_LIMIT 10
#endif

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/numeric/integer_sequence.hpp>
