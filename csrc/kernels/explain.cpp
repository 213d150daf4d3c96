#include "explain.hpp"

#include "../families/structured/toeplitz_ways.hpp"

namespace gdn_cuda {

std::string explain_toeplitz_solve(int64_t n, bool symmetric) {
    return structured::explain_toeplitz_solve(n, symmetric);
}

}  // namespace gdn_cuda
