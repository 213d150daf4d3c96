// The engines that GDN_INTEGRATIONS names; gdn_cuda/integrations acts on it. The variable is declared in C++ because a C++
// program must not warn that it is unknown.
#pragma once

#include <string>
#include <vector>

namespace gdn_cuda {

#pragma GCC visibility push(default)  // gdn_cuda._C calls it
std::vector<std::string> requested_integrations();
#pragma GCC visibility pop

}  // namespace gdn_cuda
