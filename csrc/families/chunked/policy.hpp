// The times and thresholds by which a schedule is chosen (schedule.hpp).
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

// Measured on an H200 (132 SMs), unless a figure names another card. Of three values, those at 1 and 2 are for blocks with one
// and with two value warpgroups.
struct ChunkedPolicy {
    // A chunk in gdn/prefill. One value warpgroup is faster, two share the work of the other warpgroups.
    double chunk_ns[3] = {0, 1950, 2950};
    double wide_chunk_ns = 3150;  // with keys of more than 128
    // The same for two value warpgroups, of which the second has no rows.
    double half_empty_chunk_ns = 2300;

    // A chunk in gdn/prefill_ahead, and how much later than gdn/prefill its launches start: the first chunk waits for another
    // block.
    double ahead_chunk_ns = 1220, ahead_launch_ns = 6000;
    // Blocks of a head and sequence that prepare chunks. With one, a chunk takes as long as in gdn/prefill.
    int least_preparers = 2, most_preparers = 3;
    i64 shortest_window = 64;  // chunks of a launch, where memory for what they prepare is short

    // A second launch: blocks of the first decide which of the two computes.
    double second_launch_ns = 6000;
    int shortest_twice = 80;  // chunks of a sequence, from which on a second launch pays off

    // What segments add to a call beside the time of their chunks: the search for a start, first chunks of passes, counters.
    double segments_ns = 18000;
    int warm_up_chunks = 2;        // before a warm-started segment, if heads have a fast decay
    double search_chunk_ns = 350;  // the search for a start, for each chunk that it examines
    double reach_share = 0.9;      // a warm start must take less than this share of the time that a slow decay takes

    // Chained segments. The step of a chain: the product of a state and a segment's M. From the times of whole calls.
    double chain_step_ns[3] = {0, 2200, 4200};
    // What it adds to a chunk to cache T and P; a chunk of a pass that reads them, from the times of whole calls (1x32768 2/4
    // takes 159 us in 16 segments of 64 rows, 182 in 32 of 128); and what it adds where there are `many_cached_words` (1x32768
    // 8/16).
    double store_chunk_ns = 250, cached_chunk_ns[3] = {0, 1150, 1700}, many_cached_chunk_ns = 200;
    i64 many_cached_words = i64{40} << 20;  // 160 MB
    i64 most_cached_words = i64{1} << 26;   // 256 MB; beyond, every pass computes T and P
    int shortest_chained = 24;              // chunks: shorter sequences do not repay the zeroing of counters

    // One sequence whose heads differ: warm-up chunks of fast-decay heads and their search, where they need few, and more. The
    // share of the time that uneven segments must take less than.
    int more_warm_up_chunks = 12;
    double uneven_search_ns[2][3] = {{0, 4000, 8000}, {0, 4000, 12000}}, uneven_share = 0.97;
    // Warm-up chunks up to which a head has a fast decay, where it does not depend on times.
    int uneven_reach = 16;

    // With `deterministic`: the length of the sequence whose split is the most that a sequence gets, and the share of an
    // unsplit call's time that it must take less than.
    i64 deterministic_tokens = 32768;
    double deterministic_share = 0.9;
    // Its segments are those of all longer sequences too, for which T and P may find no room: 64 rows gain less by the cache.
    double deterministic_cached_chunk_ns = 1300;

    // Waves of blocks from which on a persistent grid is faster. Two are as fast without, and one is slower.
    i64 least_waves = 3;
};

inline constexpr ChunkedPolicy kChunkedPolicy{};

}  // namespace gdn_cuda::gdn
