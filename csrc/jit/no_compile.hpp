// A section in which this process compiles nothing: what the cache holds is loaded, anything else is an Error.
#pragma once

namespace gdn_cuda::jit {

// Sections of all threads are counted together: while there is one, no thread starts a compile. Those that run go on.
void enter_no_compile();
void leave_no_compile();
bool compiling_is_refused();

}  // namespace gdn_cuda::jit
