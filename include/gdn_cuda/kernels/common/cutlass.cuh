// What Hopper kernels use of CUTLASS: narrow headers, each an instruction's wrapper or a few.
#pragma once

// libcu++ has type lists, which nothing here needs, unrolled ten deep for nvcc and sixteen for NVRTC, which it does not know:
// parsing those would be half of the time that all of these headers take.
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
