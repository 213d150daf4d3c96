// Turns a fault of a kernel into an error with the place in its code.
#pragma once

#include <signal.h>

#include <string>

#include "grid.hpp"

namespace emulator {

// " at LIBRARY.so+0x12ab", which emulated.py turns into a line of source; empty without a place.
std::string text_of(Place place);

// Handles signals of the CPU while it exists: they end the launch with an error.
class Signals {
  public:
    Signals();
    ~Signals();

  private:
    static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE};
    struct sigaction before_[std::size(kSignals)];
    stack_t stack_;
};

}  // namespace emulator
