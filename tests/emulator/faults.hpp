// What becomes of a fault of a kernel: its text, with a place in the code.
#pragma once

#include <signal.h>

#include <string>

#include "grid.hpp"

namespace emulator {

// " at +0x12ab", an address in this library, which Python makes a line of source; empty if it is elsewhere.
std::string text_of(Place place);

// Takes signals of the CPU while it lives: they end the launch with a text.
class Signals {
  public:
    Signals();
    ~Signals();

  private:
    static constexpr int kNumbers[] = {SIGSEGV, SIGBUS, SIGFPE};
    struct sigaction before_[std::size(kNumbers)];
    stack_t stack_;
};

}  // namespace emulator
