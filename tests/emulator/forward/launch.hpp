#pragma once
#include <gdn_cuda/kernels/scan/selective_forward.cuh>
