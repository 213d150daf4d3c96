// Torch from 2.11 on takes Python's GIL where the last C++ reference to a tensor of Python's goes: for every argument of a
// call, one after another, which is a tenth of the host's time of a call with twenty. A call takes it once.
#pragma once

#include <atomic>
#include <optional>

namespace gdn_cuda {

// Calls `drop(arguments)` with the GIL.
using WithGil = void (*)(void (*drop)(void*), void* arguments);
inline std::atomic<WithGil> with_gil{nullptr};  // null: no Python, or a torch that does not need it

#pragma GCC visibility push(default)  // gdn_cuda._C calls it
void drop_arguments_with(WithGil hook);
#pragma GCC visibility pop

template <class Arguments>
void drop(std::optional<Arguments>& arguments) {
    if (const WithGil hook = with_gil.load(std::memory_order_relaxed))
        hook([](void* all) { static_cast<std::optional<Arguments>*>(all)->reset(); }, &arguments);
}

}  // namespace gdn_cuda
