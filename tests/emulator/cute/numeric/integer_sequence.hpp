// The part of CUTLASS's header of this name that kernels use, on a CPU.
#pragma once

#include <utility>

namespace cute {

using std::index_sequence;
using std::integer_sequence;
using std::make_index_sequence;
using std::make_integer_sequence;

}  // namespace cute
