// Random shapes for the tests of GDN's heuristics.
#pragma once

#include <algorithm>

#include "heuristics_tools.hpp"

namespace gdn_cuda::gdn {

struct RandomShape {
    i64 sequences, tokens;
    int heads, dk, dv;
    DType io, state;
    bool aligned;
};

inline RandomShape random_shape(Random& random) {
    const int key_heads = random.one_of({1, 2, 4, 8, 16, 30});
    return {.sequences = random.size(4096),
            .tokens = random.size(131072),
            .heads = key_heads * random.one_of({1, 2, 3, 4, 8}),
            .dk = 8 * static_cast<int>(std::min<i64>(random.size(32), 32)),
            .dv = 8 * static_cast<int>(std::min<i64>(random.size(32), 32)),
            .io = random.one_of({DType::bf16, DType::f16}),
            .state = random.one_of({DType::f32, DType::bf16}),
            .aligned = random.one_of({true, false})};
}

}  // namespace gdn_cuda::gdn
