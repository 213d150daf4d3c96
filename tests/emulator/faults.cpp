// Signals of the CPU, and reports of -fsanitize.
#include "faults.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "async.hpp"
#include "state.hpp"

namespace emulator {
namespace {

Place place_in_code([[maybe_unused]] void* context) {
#ifdef __x86_64__
    // One byte further, like a return address: describing a place subtracts one.
    return reinterpret_cast<Place>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] + 1);
#else
    return nullptr;
#endif
}

void on_signal(int number, siginfo_t* info, void* context) {
    if (current < 0) {  // host code
        signal(number, SIG_DFL);
        return;
    }
    char address[32];
    std::snprintf(address, sizeof address, "%p", info->si_addr);
    const std::string what = number == SIGFPE ? "a division by zero" : std::string("unmapped memory, ") + address;
    if (const Place begun = place_of_arrival())
        fail_at(begun, what + ", by the asynchronous copy that begins");
    else
        fail_at(place_in_code(context), what);
}

}  // namespace

static std::string offset_of(Place place) {
    Dl_info found;
    if (place == nullptr || dladdr(place, &found) == 0 || found.dli_fbase == nullptr) return "";
    const std::string_view path = found.dli_fname;
    char text[32];
    std::snprintf(text, sizeof text, "+0x%tx", static_cast<const char*>(place) - 1 - static_cast<char*>(found.dli_fbase));
    return std::string(path.substr(path.rfind('/') + 1)) + text;
}
std::string text_of(Place place) {
    const std::string offset = offset_of(place);
    return offset.empty() ? "" : " at " + offset;
}

// With the callers' places, if `place` is on the running thread's stack.
static std::string text_with_callers(Place place) {
    constexpr int kMost = 24, kMostCallers = 5;
    void* frames[kMost];
    const int count = backtrace(frames, kMost);
    std::string text = text_of(place);
    for (int i = 0; i < count && !text.empty(); ++i)
        if (frames[i] == place || static_cast<const char*>(frames[i]) + 1 == place) {
            for (int caller = i + 1; caller < std::min(count, i + 1 + kMostCallers); ++caller)
                if (const std::string offset = offset_of(frames[caller]); !offset.empty()) text += " < " + offset;
            break;
        }
    return text;
}

void fail_at(Place place, const std::string& text) {
    fail(text + text_with_callers(place));
}

Signals::Signals() {
    static char* const stack = guarded(kStackBytes);
    const stack_t ours{stack, 0, kStackBytes};
    sigaltstack(&ours, &stack_);
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &before_[i]);
}
Signals::~Signals() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
    sigaltstack(&stack_, nullptr);
}

namespace {

// The location in a handler's first argument.
struct Source {
    const char* file;
    unsigned line, column;
};
[[noreturn]] void found(const Source& source, const char* what) {
    fail(std::string(source.file) + ":" + std::to_string(source.line) + ": " + what);
}

}  // namespace
}  // namespace emulator

#define GDN_HANDLER(name, what)                                                                  \
    extern "C" [[noreturn]] void __ubsan_handle_##name##_abort(const emulator::Source* source) { \
        emulator::found(*source, what);                                                          \
    }
GDN_HANDLER(type_mismatch_v1, "a misaligned address")
GDN_HANDLER(out_of_bounds, "an index outside of its array")
GDN_HANDLER(shift_out_of_bounds, "a shift by more bits than there are")
GDN_HANDLER(add_overflow, "an integer overflows")
GDN_HANDLER(sub_overflow, "an integer overflows")
GDN_HANDLER(mul_overflow, "an integer overflows")
GDN_HANDLER(negate_overflow, "an integer overflows")
GDN_HANDLER(divrem_overflow, "a division overflows")
