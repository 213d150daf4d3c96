// The part of CUTLASS's header of this name that kernels use, on a CPU: named barriers, mbarriers, fences.
#pragma once

#include <cstdint>

#include "barriers.hpp"

namespace cutlass::arch {

class NamedBarrier {
  public:
    static constexpr std::uint32_t ReservedNamedBarrierCount = 8, HardwareMaxNumNamedBarriers = 16;

    NamedBarrier(std::uint32_t threads, std::uint32_t number = 0) : threads_(threads), number_(number) {}
    void arrive_and_wait() const { sync(threads_, number_); }
    void sync() const { sync(threads_, number_); }
    void arrive() const { arrive(threads_, number_); }

    static void arrive_and_wait(std::uint32_t threads, std::uint32_t number) { sync(threads, number); }
    static void sync(std::uint32_t threads, std::uint32_t number) {
        emulator::sync_at_barrier(number + ReservedNamedBarrierCount, threads);
    }
    static void arrive(std::uint32_t threads, std::uint32_t number) {
        emulator::arrive_at_barrier(number + ReservedNamedBarrierCount, threads);
    }

  private:
    std::uint32_t threads_, number_;
};

struct ClusterBarrier {
    using ValueType = std::uint64_t;

  protected:
    ValueType barrier_;

  public:
    ClusterBarrier() = delete;

    void init(std::uint32_t arrivals) const { init(&barrier_, arrivals); }
    bool test_wait(std::uint32_t parity, std::uint32_t asks = true) const { return test_wait(&barrier_, parity, asks); }
    bool try_wait(std::uint32_t parity) const { return try_wait(&barrier_, parity); }
    void wait(std::uint32_t parity) const { wait(&barrier_, parity); }
    void arrive() const { arrive(&barrier_); }
    void arrive(std::uint32_t block, std::uint32_t arrives = true) const { arrive(&barrier_, block, arrives); }

    static void init(const ValueType* word, std::uint32_t arrivals) { emulator::init_mbarrier(address(word), arrivals); }
    static void invalidate(const ValueType* word) { emulator::invalidate_mbarrier(address(word)); }
    static bool test_wait(const ValueType* word, std::uint32_t parity, std::uint32_t asks) {
        return asks && emulator::is_phase_over(address(word), parity);
    }
    static bool try_wait(const ValueType* word, std::uint32_t parity) { return emulator::is_phase_over(address(word), parity); }
    static void wait(const ValueType* word, std::uint32_t parity) { emulator::wait_for_phase(address(word), parity); }
    static void arrive(const ValueType* word) { emulator::arrive_at_mbarrier(address(word)); }
    static void arrive(const ValueType* word, std::uint32_t block, std::uint32_t arrives) {
        if (arrives) emulator::arrive_at_mbarrier(address_in(word, block));
    }

  protected:
    static unsigned address(const ValueType* word) { return emulator::shared_address(word); }
    static unsigned address_in(const ValueType* word, std::uint32_t block) {
        return emulator::address_in_block(address(word), block);
    }
};

struct ClusterTransactionBarrier : ClusterBarrier {
    ClusterTransactionBarrier() = delete;

    void arrive_and_expect_tx(std::uint32_t bytes) const { arrive_and_expect_tx(&barrier_, bytes); }
    void arrive_and_expect_tx(std::uint32_t bytes, std::uint32_t block, std::uint32_t arrives = 1) const {
        arrive_and_expect_tx(&barrier_, bytes, block, arrives);
    }
    void expect_transaction(std::uint32_t bytes) const { expect_transaction(&barrier_, bytes); }
    void complete_transaction(std::uint32_t bytes, std::uint32_t completes = 1) const {
        if (completes) emulator::complete_bytes(address(&barrier_), bytes);
    }
    void complete_transaction(std::uint32_t block, std::uint32_t bytes, std::uint32_t completes) const {
        complete_transaction(&barrier_, block, bytes, completes);
    }

    static void arrive_and_expect_tx(const ValueType* word, std::uint32_t bytes) {
        emulator::arrive_and_expect_bytes(address(word), bytes);
    }
    static void arrive_and_expect_tx(const ValueType* word, std::uint32_t bytes, std::uint32_t block, std::uint32_t arrives) {
        if (arrives) emulator::arrive_and_expect_bytes(address_in(word, block), bytes);
    }
    static void expect_transaction(const ValueType* word, std::uint32_t bytes) { emulator::expect_bytes(address(word), bytes); }
    static void complete_transaction(const ValueType* word, std::uint32_t block, std::uint32_t bytes,
                                     std::uint32_t completes = 1) {
        if (completes) emulator::complete_bytes(address_in(word, block), bytes);
    }
};

inline void fence_barrier_init() {
    emulator::fence_mbarrier_init();
}
inline void fence_view_async_shared() {
    emulator::fence_async_shared();
}

}  // namespace cutlass::arch
