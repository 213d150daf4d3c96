// Vector clocks: which actions of a warp are ordered before those of another one by the barriers between them. Lanes of one
// warp count as ordered; there, only the two runs with opposite orders of threads find races.
#pragma once

#include <vector>

namespace emulator {

// One entry for each warp of the cluster, then one for each mbarrier: actions up to this time are ordered before.
using Clock = std::vector<unsigned>;

void set_running(int fiber);  // its warp is the running warp from now on

// An action of the running warp, or the completion of an mbarrier's phase, which is ordered after the copies that it counts.
struct Event {
    unsigned short who;
    unsigned time;
};
Event event_of_warp();
Event event_of_phase(unsigned mbarrier, unsigned phase);
// Orders the completion of a phase before who acquires `to`.
void add_phase(Clock& to, unsigned mbarrier, unsigned phase);

bool is_known(const Event& event);         // whether it is ordered before what the running warp does next
const unsigned* known_of_warps(int rank);  // the running warp's clock, from the first warp of that block on

void join(Clock& into, const Clock& other);
void release(Clock& into);        // with all that the running warp has done
void acquire(const Clock& from);  // into the running warp's clock
void acquire_for(int fiber, const Clock& from);

void reset_clocks();  // for a new cluster, whose warps are ordered after everything before

}  // namespace emulator
