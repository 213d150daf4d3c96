// What has happened before what: how much of what each warp has done is known to the others, from barriers between them.
// Between lanes of a warp everything counts as known; there, only the two orders of threads tell.
#pragma once

#include <vector>

namespace emulator {

// By warps of the cluster, then by its mbarriers: up to which time what they have done is known.
using Clock = std::vector<unsigned>;

void run_as(int fiber);  // whose warp is the running one from now on

// Something that the running warp does now, or a phase of an mbarrier, whose copies come before its end.
struct Event {
    unsigned short who;
    unsigned time;
};
Event event_of_warp();
Event event_of_phase(unsigned mbarrier, unsigned phase);
// By which mbarriers say that a phase is over.
void add_phase(Clock& to, unsigned mbarrier, unsigned phase);

bool is_known(const Event& event);         // to the running warp
const unsigned* known_of_warps(int rank);  // times of the warps of a block that are known to it

void join(Clock& into, const Clock& other);
void release(Clock& into);        // all that the running warp has done
void acquire(const Clock& from);  // by the running warp
void acquire_for(int fiber, const Clock& from);

void forget_order();  // a cluster begins: its warps know all that was before

}  // namespace emulator
