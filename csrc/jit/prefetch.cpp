#include "prefetch.hpp"

#include <atomic>
#include <set>

#include "errors.hpp"
#include "fork.hpp"
#include "interrupt.hpp"
#include "no_compile.hpp"
#include "runtime.hpp"

namespace gdn_cuda::jit {
namespace {

std::atomic<bool> is_allowed{false};
Guarded<std::set<std::string>> begun;  // sources and architectures

void obtain_or_leave(const KernelSource& source, const std::string& arch) {
    try {
        obtain(source, arch);
    } catch (...) {  // whatever it is, the call that needs the kernel says so
    }
}

}  // namespace

void allow_prefetch() {
    is_allowed.store(true);
}

void prefetch(const KernelSource& source, const std::string& arch) {
    if (!is_allowed.load() || compiling_is_refused() || !begun.lock()->insert(arch + "\n" + source.code).second) return;
    try {
        run_in_background([=] { obtain_or_leave(source, arch); });
    } catch (const Error&) {  // no thread to be had
    }
}

}  // namespace gdn_cuda::jit
