#pragma once
#include <gdn_cuda/kernels/scan/selective_backward.cuh>
#include <gdn_cuda/kernels/scan/selective_backward_sums.cuh>
