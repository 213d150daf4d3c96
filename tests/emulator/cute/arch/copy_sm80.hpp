// The part of CUTLASS's header of this name that kernels use, on a CPU: cp.async.
#pragma once

#include <cstdint>

#include "grid.hpp"

namespace cute {

template <class From, class To>
struct EmulatedCopy {
    static_assert(sizeof(From) == sizeof(To) && (sizeof(From) == 4 || sizeof(From) == 8 || sizeof(From) == 16));

    static void copy(const From& from, To& to) { copy(from, to, true); }
    static void copy(const From& from, To& to, bool exists) {
        if (reinterpret_cast<std::uintptr_t>(&from) % sizeof(From) != 0 ||
            reinterpret_cast<std::uintptr_t>(&to) % sizeof(To) != 0)
            emulator::fail("cp.async: a misaligned address");
        emulator::copy_later(&to, exists ? &from : nullptr, sizeof(From));
    }
};
template <class From, class To = From>
using SM80_CP_ASYNC_CACHEALWAYS = EmulatedCopy<From, To>;
template <class From, class To = From>
using SM80_CP_ASYNC_CACHEGLOBAL = EmulatedCopy<From, To>;
template <class From, class To = From>
using SM80_CP_ASYNC_CACHEALWAYS_ZFILL = EmulatedCopy<From, To>;
template <class From, class To = From>
using SM80_CP_ASYNC_CACHEGLOBAL_ZFILL = EmulatedCopy<From, To>;

inline void cp_async_fence() {
    emulator::close_group_of_copies();
}
// 0 waits for all copies, also for those in the open group.
template <int kMostGroups>
void cp_async_wait() {
    if constexpr (kMostGroups == 0) emulator::close_group_of_copies();
    emulator::wait_for_copies(kMostGroups);
}

}  // namespace cute
