// GDN_FIELDS(first, second) in a struct defines `fields`, which visits its members in this order:
//
//     Struct::fields(value, [](const char* name, auto& member) { … });
//
// Compiled by g++, nvcc and NVRTC.
#pragma once

#define GDN_FIELDS(...)                                      \
    static constexpr void fields(auto& self, auto&& visit) { \
        GDN_RESCAN(GDN_VISIT(__VA_ARGS__))                   \
    }

// A macro cannot call itself: GDN_VISIT leaves a call of itself behind, which the next scan of the text expands. There are 64.
#define GDN_VISIT(first, ...)  \
    visit(#first, self.first); \
    __VA_OPT__(GDN_VISIT_LATER GDN_EMPTY_LIST(__VA_ARGS__))
#define GDN_VISIT_LATER() GDN_VISIT
#define GDN_EMPTY_LIST ()
#define GDN_RESCAN(...) GDN_RESCAN_16(GDN_RESCAN_16(GDN_RESCAN_16(GDN_RESCAN_16(__VA_ARGS__))))
#define GDN_RESCAN_16(...) GDN_RESCAN_4(GDN_RESCAN_4(GDN_RESCAN_4(GDN_RESCAN_4(__VA_ARGS__))))
#define GDN_RESCAN_4(...) GDN_SCAN(GDN_SCAN(GDN_SCAN(GDN_SCAN(__VA_ARGS__))))
#define GDN_SCAN(...) __VA_ARGS__
