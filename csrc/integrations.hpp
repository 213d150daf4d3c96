// What GDN_INTEGRATIONS asks for, which gdn_cuda/integrations obeys. Here, as a C++ program too must not be told that the
// variable is unknown.
#pragma once

#include <string>
#include <vector>

namespace gdn_cuda {

#pragma GCC visibility push(default)  // gdn_cuda._C calls it
std::vector<std::string> requested_integrations();
#pragma GCC visibility pop

}  // namespace gdn_cuda
