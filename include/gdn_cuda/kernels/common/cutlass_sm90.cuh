// The CUTLASS headers of Hopper's kernels: narrow ones, each wrapping one or a few instructions.
#pragma once

// clang-format off: sets the depth of libcu++'s type lists for all headers, so it comes first
#include <gdn_cuda/kernels/common/cutlass_sm80.cuh>
// clang-format on

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/numeric/integer_sequence.hpp>
