// Inline PTX on a CPU. translate.py makes `asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));` a call
// ptx<"ex2.approx.ftz.f32 %0, %1;">(y, x). Each instruction is defined here, correctly rounded in fp32; one that is missing
// does not compile.
#pragma once

#include <math.h>

#include <bit>
#include <cstring>
#include <string_view>

#include "barriers.hpp"
#include "elements.hpp"
#include "grid.hpp"
#include "mma.hpp"
#include "tma.hpp"

namespace emulator {

template <std::size_t kLength>
struct Text {
    char characters[kLength];

    constexpr Text(const char (&text)[kLength]) {
        for (std::size_t i = 0; i < kLength; ++i) characters[i] = text[i];
    }
    constexpr bool operator==(std::string_view text) const { return std::string_view(characters, kLength - 1) == text; }
};
template <Text kText>
inline constexpr bool kIsKnown = false;

inline float without_subnormals(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0.f, x) : x;
}
[[noreturn]] inline void fail_misaligned() {
    fail("a misaligned address");
}
// No memcpy: -fsanitize=thread instruments assignments only.
template <class T>
T load(const void* from) {
    if (reinterpret_cast<std::uintptr_t>(from) % sizeof(T) != 0) fail_misaligned();
    return *static_cast<const T*>(from);
}
template <class T>
void store(void* to, const T& x) {
    if (reinterpret_cast<std::uintptr_t>(to) % sizeof(T) != 0) fail_misaligned();
    *static_cast<T*>(to) = x;
}
inline void check_copy(unsigned to, const void* from, unsigned bytes = 16) {
    if (to % bytes != 0 || reinterpret_cast<std::uintptr_t>(from) % bytes != 0) fail("cp.async: a misaligned address");
}

inline unsigned rounded_to_bf16(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline unsigned rounded_to_f16(float x) {
    constexpr float kLargest = 65504;
    if (x != x) return 0x7fff;
    return std::bit_cast<unsigned short>(static_cast<_Float16>(fminf(fmaxf(x, -kLargest), kLargest)));
}

// For each half; NaN is ignored.
template <bool kIsBf16>
unsigned larger_halves(unsigned a, unsigned b) {
    const auto half = [&](int i) {
        const auto x = static_cast<unsigned short>(a >> 16 * i), y = static_cast<unsigned short>(b >> 16 * i);
        const double value = value_of_16_bits(x, kIsBf16), other = value_of_16_bits(y, kIsBf16);
        return static_cast<unsigned>(value >= other || other != other ? x : y);
    };
    return half(1) << 16 | half(0);
}

struct alignas(16) Four {
    unsigned x, y, z, w;
};

template <Text kText, class... Operands>
void ptx(Operands&&... operands) {
    const auto run = [&](auto&& instruction) { instruction(operands...); };
    if constexpr (kText == "") {  // hides a value from the optimizer
    } else if constexpr (kText == "ex2.approx.ftz.f32 %0, %1;") {
        run([](float& y, float x) { y = without_subnormals(exp2f(without_subnormals(x))); });
    } else if constexpr (kText == "sin.approx.ftz.f32 %0, %1;") {
        run([](float& y, float x) { y = without_subnormals(sinf(without_subnormals(x))); });
    } else if constexpr (kText == "cos.approx.ftz.f32 %0, %1;") {
        run([](float& y, float x) { y = without_subnormals(cosf(without_subnormals(x))); });
    } else if constexpr (kText == "rcp.approx.ftz.f32 %0, %1;") {
        run([](float& y, float x) { y = without_subnormals(1 / without_subnormals(x)); });
    } else if constexpr (kText == "sqrt.approx.ftz.f32 %0, %1;") {
        run([](float& y, float x) { y = sqrtf(without_subnormals(x)); });
    } else if constexpr (kText == "max.NaN.f32 %0, %1, %2;") {
        run([](float& y, float a, float b) { y = a != a || b != b ? NAN : fmaxf(a, b); });
    } else if constexpr (kText == "min.NaN.f32 %0, %1, %2;") {
        run([](float& y, float a, float b) { y = a != a || b != b ? NAN : fminf(a, b); });
    } else if constexpr (kText ==
                         "{ .reg .pred wide; setp.ne.u32 wide, %2, 0; @wide ld.global.u32 %0, [%1]; "
                         "@!wide ld.global.u16 %0, [%1]; }") {
        run([](unsigned& x, const void* from, unsigned wide) {
            x = wide != 0 ? load<unsigned>(from) : load<unsigned short>(from);
        });
    } else if constexpr (kText ==
                         "{ .reg .pred wide; setp.ne.u32 wide, %3, 0; @wide ld.global.u32 %0, [%2]; "
                         "@!wide ld.global.u16 %1, [%2]; }") {
        run([](unsigned& x, unsigned& narrow, const void* from, unsigned wide) {
            wide != 0 ? x = load<unsigned>(from) : narrow = load<unsigned short>(from);
        });
    } else if constexpr (kText ==
                         "{ .reg .pred wide; setp.ne.u32 wide, %2, 0; @wide ld.global.s64 %0, [%1]; "
                         "@!wide ld.global.s32 %0, [%1]; }") {
        run([](long long& x, const void* from, unsigned wide) { x = wide != 0 ? load<long long>(from) : load<int>(from); });
    } else if constexpr (kText == "{ .reg .pred exists; setp.ne.u32 exists, %1, 0; @exists ld.global.u32 %0, [%2]; }") {
        run([](unsigned& x, unsigned exists, const void* from) {
            if (exists != 0) x = load<unsigned>(from);
        });
    } else if constexpr (kText == "{ .reg .pred exists; setp.ne.u32 exists, %1, 0; @exists ld.global.u16 %0, [%2]; }") {
        run([](unsigned& x, unsigned exists, const void* from) {
            if (exists != 0) x = load<unsigned short>(from);
        });
    } else if constexpr (kText == "{ .reg .pred exists; setp.ne.u32 exists, %0, 0; @exists st.global.u32 [%1], %2; }") {
        run([](unsigned exists, void* to, unsigned x) {
            if (exists != 0) store(to, static_cast<unsigned>(x));
        });
    } else if constexpr (kText == "{ .reg .pred exists; setp.ne.u32 exists, %0, 0; @exists st.global.u16 [%1], %2; }") {
        run([](unsigned exists, void* to, unsigned x) {
            if (exists != 0) store(to, static_cast<unsigned short>(x));
        });
    } else if constexpr (kText ==
                         "{ .reg .pred exists; setp.ne.u32 exists, %2, 0; mov.u32 %0, 0; @exists ld.global.u32 %0, [%1]; }") {
        run([](unsigned& x, const void* from, unsigned exists) { x = exists != 0 ? load<unsigned>(from) : 0; });
    } else if constexpr (kText == "ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];") {
        run([](unsigned& x, unsigned& y, unsigned& z, unsigned& w, const void* from) {
            const auto four = load<Four>(from);
            x = four.x, y = four.y, z = four.z, w = four.w;
        });
    } else if constexpr (kText == "ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];") {
        run([](unsigned& x, unsigned& y, const void* from) {
            const auto both = load<unsigned long long>(from);
            x = static_cast<unsigned>(both), y = static_cast<unsigned>(both >> 32);
        });
    } else if constexpr (kText == "st.global.v2.u32 [%0], {%1, %2};") {
        run([](void* to, unsigned x, unsigned y) { store(to, static_cast<unsigned long long>(y) << 32 | x); });
    } else if constexpr (kText == "st.global.v4.u32 [%0], {%1, %2, %3, %4};") {
        run([](void* to, unsigned x, unsigned y, unsigned z, unsigned w) { store(to, Four{x, y, z, w}); });
    } else if constexpr (kText == "cp.async.cg.shared.global [%0], [%1], 16;") {
        run([](unsigned to, const void* from) {
            check_copy(to, from);
            copy_later(shared_pointer(to), from);
        });
    } else if constexpr (kText == "cp.async.ca.shared.global [%0], [%1], %2;") {
        run([](unsigned to, const void* from, int bytes) {
            check_copy(to, from, static_cast<unsigned>(bytes));
            copy_later(shared_pointer(to), from, bytes);
        });
    } else if constexpr (kText == "cp.async.cg.shared.global [%0], [%1], 16, %2;") {
        run([](unsigned to, const void* from, int bytes) {
            check_copy(to, from);
            copy_later(shared_pointer(to), bytes == 16 ? from : nullptr);
        });
    } else if constexpr (kText == "prefetch.global.L2 [%0];") {
        run([](const void* from) { [[maybe_unused]] const volatile char byte = load<char>(from); });
    } else if constexpr (kText == "st.shared.u32 [%0], %1;") {
        run([](unsigned to, unsigned x) { store(shared_pointer(to), x); });
    } else if constexpr (kText == "st.shared.v4.u32 [%0], {%1, %2, %3, %4};") {
        run([](unsigned to, unsigned x, unsigned y, unsigned z, unsigned w) { store(shared_pointer(to), Four{x, y, z, w}); });
    } else if constexpr (kText == "ld.shared.u32 %0, [%1];") {
        run([](unsigned& x, unsigned from) { x = load<unsigned>(shared_pointer(from)); });
    } else if constexpr (kText == "ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];") {
        run([](unsigned& x, unsigned& y, unsigned& z, unsigned& w, unsigned from) {
            const auto four = load<Four>(shared_pointer(from));
            x = four.x, y = four.y, z = four.z, w = four.w;
        });
    } else if constexpr (kText == "mov.u32 %0, %%clusterid.x; mov.u32 %1, %%cluster_ctarank;") {
        run([](int& index, int& rank) { index = cluster_index(), rank = static_cast<int>(rank_in_cluster()); });
    } else if constexpr (kText == "barrier.cluster.arrive.aligned;") {
        arrive_in_cluster();
    } else if constexpr (kText == "barrier.cluster.wait.aligned;") {
        wait_for_cluster();
    } else if constexpr (kText == "mapa.shared::cluster.u32 %0, %1, %2;") {
        run([](unsigned& there, unsigned here, unsigned rank) { there = address_in_block(here, rank); });
    } else if constexpr (kText == "st.shared::cluster.f64 [%0], %1;") {
        run([](unsigned to, double x) { store(pointer_for_store(to), x); });
    } else if constexpr (kText == "cvt.rn.bf16x2.f32 %0, %1, %2;") {
        run([](unsigned& pair, float high, float low) { pair = rounded_to_bf16(high) << 16 | rounded_to_bf16(low); });
    } else if constexpr (kText == "fma.rn.bf16x2 %0, %1, %2, %3;") {
        run([](unsigned& y, unsigned a, unsigned b, unsigned c) {
            const auto value = [](unsigned pair, int half) {
                return static_cast<double>(std::bit_cast<float>(half == 0 ? pair << 16 : pair & 0xffff0000u));
            };
            const auto sum = [&](int half) {
                return rounded_to_bf16(static_cast<float>(value(a, half) * value(b, half) + value(c, half)));
            };
            y = sum(1) << 16 | sum(0);
        });
    } else if constexpr (kText == "max.xorsign.abs.f16x2 %0, %1, %2;") {
        run([](unsigned& y, unsigned a, unsigned b) {
            y = larger_halves<false>(a & 0x7fff7fffu, b & 0x7fff7fffu) | ((a ^ b) & 0x80008000u);
        });
    } else if constexpr (kText == "fma.rn.f16x2 %0, %1, %2, %3;") {
        run([](unsigned& y, unsigned a, unsigned b, unsigned c) {
            const auto value = [](unsigned pair, int half) {
                return static_cast<double>(std::bit_cast<_Float16>(static_cast<unsigned short>(pair >> 16 * half)));
            };
            const auto sum = [&](int half) -> unsigned {
                return std::bit_cast<unsigned short>(static_cast<_Float16>(value(a, half) * value(b, half) + value(c, half)));
            };
            y = sum(1) << 16 | sum(0);
        });
    } else if constexpr (kText == "cvt.rn.satfinite.f16x2.f32 %0, %1, %2;") {
        run([](unsigned& pair, float high, float low) { pair = rounded_to_f16(high) << 16 | rounded_to_f16(low); });
    } else if constexpr (kText == "max.bf16x2 %0, %1, %2;") {
        run([](unsigned& pair, unsigned a, unsigned b) { pair = larger_halves<true>(a, b); });
    } else if constexpr (kText == "max.f16x2 %0, %1, %2;") {
        run([](unsigned& pair, unsigned a, unsigned b) { pair = larger_halves<false>(a, b); });
    } else if constexpr (kText ==
                         "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                         "{%0, %1, %2, %3};") {
        run([](float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
               unsigned b1) {
            mma_sync({Elements::tf32, {a0, a1, a2, a3}, {b0, b1}, {d0, d1, d2, d3}, {&d0, &d1, &d2, &d3}});
        });
    } else if constexpr (kText == "bar.sync %0, %1;") {
        run([](unsigned number, unsigned threads) { sync_at_barrier(number, threads); });
    } else if constexpr (kText ==
                         "{ .reg .pred mine, any; setp.ne.u32 mine, %3, 0; bar.red.or.pred any, %1, %2, mine; "
                         "selp.u32 %0, 1, 0, any; }") {
        run([](unsigned& any, unsigned number, unsigned threads, unsigned vote) {
            any = any_at_barrier(number, threads, vote != 0);
        });
    } else if constexpr (kText == "fence.proxy.async.global;") {
        fence_async_global();
    } else if constexpr (kText == "fence.proxy.async;") {
        fence_async_global();
        fence_async_shared();
    } else if constexpr (kText == "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%2, %3}, [%1];") {
        run([](unsigned to, unsigned mbarrier, std::uint64_t low, std::uint64_t high) {
            store_async(low, high, 16, to, mbarrier);
        });
    } else if constexpr (kText == "cp.async.bulk.wait_group %0;") {
        run([](int most_in_flight) { wait_for_bulk_groups(most_in_flight, true); });
    } else if constexpr (kText == "griddepcontrol.launch_dependents;" || kText == "griddepcontrol.wait;") {
        // Grids run one after another.
    } else if constexpr (kText == "red.release.gpu.global.add.u32 [%0], 1;") {
        run([](unsigned* to) { add_release(to, 1); });
    } else if constexpr (kText == "red.release.gpu.global.add.u32 [%0], %1;") {
        run([](unsigned* to, unsigned more) { add_release(to, more); });
    } else if constexpr (kText == "ld.acquire.gpu.global.u32 %0, [%1];") {
        run([](unsigned& x, const unsigned* from) { x = load_acquire(from); });
    } else if constexpr (kText == "cp.async.commit_group;") {
        close_group_of_copies();
    } else if constexpr (kText == "cp.async.wait_group %0;") {
        run(wait_for_copies);
    } else {
        static_assert(kIsKnown<kText>, "tests/emulator/ptx.hpp: expected a known text of PTX, got the one above");
    }
}

}  // namespace emulator
