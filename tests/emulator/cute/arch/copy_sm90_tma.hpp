// The part of CUTLASS's header of this name that kernels use, on a CPU: tensor copies by TMA of up to five dimensions, bulk
// copies.
#pragma once

#include <cstdint>

#include "barriers.hpp"
#include "tma.hpp"

namespace cute {

namespace TMA {

enum class CacheHintSm90 : std::uint64_t {
    EVICT_NORMAL = 0x1000000000000000,
    EVICT_FIRST = 0x12F0000000000000,
    EVICT_LAST = 0x14F0000000000000,
};

}  // namespace TMA

struct EmulatedTmaLoad {
    template <class... At>
    static void copy(const void* map, std::uint64_t* mbarrier, std::uint64_t, void* shared, At... at) {
        emulator::tma_load(map, {at...}, shared, mbarrier);
    }
    struct PREFETCH {
        template <class... At>
        static void copy(const void* map, At...) {
            emulator::check_tensor_map(map, sizeof...(At));
        }
    };
};
using SM90_TMA_LOAD_1D = EmulatedTmaLoad;
using SM90_TMA_LOAD_2D = EmulatedTmaLoad;
using SM90_TMA_LOAD_3D = EmulatedTmaLoad;
using SM90_TMA_LOAD_4D = EmulatedTmaLoad;
using SM90_TMA_LOAD_5D = EmulatedTmaLoad;
using SM90_TMA_LOAD = EmulatedTmaLoad;

struct EmulatedTmaMulticast {
    template <class... At>
    static void copy(const void* map, std::uint64_t* mbarrier, std::uint16_t blocks, std::uint64_t, void* shared, At... at) {
        emulator::tma_load_multicast(map, {at...}, shared, mbarrier, blocks);
    }
};
using SM90_TMA_LOAD_MULTICAST_1D = EmulatedTmaMulticast;
using SM90_TMA_LOAD_MULTICAST_2D = EmulatedTmaMulticast;
using SM90_TMA_LOAD_MULTICAST_3D = EmulatedTmaMulticast;
using SM90_TMA_LOAD_MULTICAST_4D = EmulatedTmaMulticast;
using SM90_TMA_LOAD_MULTICAST_5D = EmulatedTmaMulticast;
using SM90_TMA_LOAD_MULTICAST = EmulatedTmaMulticast;

struct EmulatedTmaStore {
    template <class... At>
    static void copy(const void* map, const void* shared, At... at) {
        emulator::tma_store(map, {at...}, shared);
    }
};
using SM90_TMA_STORE_1D = EmulatedTmaStore;
using SM90_TMA_STORE_2D = EmulatedTmaStore;
using SM90_TMA_STORE_3D = EmulatedTmaStore;
using SM90_TMA_STORE_4D = EmulatedTmaStore;
using SM90_TMA_STORE_5D = EmulatedTmaStore;
using SM90_TMA_STORE = EmulatedTmaStore;

struct SM90_BULK_COPY_G2S {
    static void copy(const void* global, std::uint64_t* mbarrier, void* shared, std::int32_t bytes) {
        emulator::bulk_load(global, static_cast<unsigned>(bytes), shared, mbarrier);
    }
    struct PREFETCH {
        static void copy(const void*, std::int32_t) {}
    };
};
struct SM90_BULK_COPY_S2G {
    static void copy(const void* shared, void* global, std::int32_t bytes) {
        emulator::bulk_store(global, shared, static_cast<unsigned>(bytes));
    }
};

inline void tma_store_fence() {
    emulator::fence_async_shared();
}
inline void tma_store_arrive() {
    emulator::close_bulk_group();
}
template <int kCount>
void tma_store_wait() {
    emulator::wait_for_bulk_groups(kCount, false);
}

}  // namespace cute
