#include "clocks.hpp"

#include <algorithm>

#include "state.hpp"

namespace emulator {
namespace {

std::vector<Clock> clocks;  // one per warp of the cluster
unsigned begin = 0;         // earlier clusters have smaller times
unsigned latest = 0;

int warps_of_block() {
    return (now.threads + kLanes - 1) / kLanes;
}
int who_is(int fiber) {
    return rank_of(fiber) * warps_of_block() + thread_of(fiber) / kLanes;
}
int running;  // the index of the running warp in `clocks`
unsigned time_of_phase(unsigned phase) {
    latest = std::max(latest, begin + phase + 1);
    return begin + phase + 1;
}
// A missing entry means: up to the begin of the cluster.
unsigned& time_in(Clock& clock, std::size_t who) {
    if (who >= clock.size()) clock.resize(who + 1, begin);
    return clock[who];
}

}  // namespace

void set_running(int fiber) {
    running = who_is(fiber);
}
Event event_of_warp() {
    return {static_cast<unsigned short>(running), clocks[running][running]};
}
Event event_of_phase(unsigned mbarrier, unsigned phase) {
    return {static_cast<unsigned short>(clocks.size() + mbarrier), time_of_phase(phase)};
}
void add_phase(Clock& to, unsigned mbarrier, unsigned phase) {
    time_in(to, clocks.size() + mbarrier) = time_of_phase(phase);
}

bool is_known(const Event& event) {
    return event.time <= begin || event.who == running || time_in(clocks[running], event.who) >= event.time;
}
const unsigned* known_of_warps(int rank) {
    return clocks[running].data() + rank * warps_of_block();
}

void join(Clock& into, const Clock& other) {
    if (into.size() < other.size()) into.resize(other.size(), begin);
    for (std::size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}
void release(Clock& into) {
    join(into, clocks[running]);
    latest = std::max(latest, ++clocks[running][running]);
}
void acquire(const Clock& from) {
    join(clocks[running], from);
}
void acquire_for(int fiber, const Clock& from) {
    join(clocks[who_is(fiber)], from);
}

void reset_clocks() {
    begin = ++latest;
    const int count = now.blocks * warps_of_block();
    clocks.assign(count, Clock(count, begin));
    for (int who = 0; who < count; ++who) clocks[who][who] = begin + 1;
    latest = begin + 1;
}

}  // namespace emulator
