// States that a call of ssd_scan reports at other tokens than the last: what is checked of them.
#include "../../operators/state_slots.hpp"
#include "call.hpp"

namespace gdn_cuda::ssd {
namespace {

void check_boundaries(const Checks& check, const View& boundaries, const View& cu_seqlens, int64_t tokens) {
    const int64_t count = boundaries.size(0);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t token = index_at(boundaries, i), last = i == 0 ? 0 : index_at(boundaries, i - 1);
        GDN_REQUIRE(check, token >= last && token <= tokens, "boundaries",
                    fmt::format("offsets that never decrease, from 0 to {}", tokens),
                    fmt::format("{} at position {}", token, i));
    }
    int64_t at = 0;
    for (int64_t n = 1; n < cu_seqlens.size(0); ++n) {
        const int64_t end = index_at(cu_seqlens, n);
        while (at < count && index_at(boundaries, at) < end) ++at;
        GDN_REQUIRE(check, at < count && index_at(boundaries, at) == end, "boundaries", "the end of every sequence",
                    fmt::format("none at {}", end));
    }
}
SsdStates check_rows(const Checks& check, const char* argument, const View& rows, const Prepared& prepared, int64_t count) {
    const SsdStates states = check_states(check, argument, rows, prepared, count);
    check.distinct(argument, rows);
    return states;
}

}  // namespace

void check_checkpoints(const Checks& check, PreparedScan& prepared, const SsdCheckpoints& reported, const View& cu_seqlens) {
    SsdCheckpointsArgs& args = prepared.checkpoints;
    const View offsets = view_of(reported.checkpoint_offsets), boundaries = view_of(reported.boundaries),
               rows = view_of(reported.checkpoints), before = view_of(reported.states_before);
    const int64_t every = reported.checkpoint_every;
    GDN_REQUIRE(check, every >= 0 && every % kChunk == 0, "checkpoint_every", fmt::format("a multiple of {}", int{kChunk}),
                fmt::format("{}", every));
    args.every = check.count("checkpoint_every", "tokens", every);
    GDN_REQUIRE(check, every == 0 || !offsets.defined(), "checkpoint_offsets", "None with checkpoint_every", "a tensor");
    const bool alone = every == 0 && !offsets.defined();
    GDN_REQUIRE(check, alone || !boundaries.defined(), "boundaries",
                every != 0 ? "None with checkpoint_every" : "None with checkpoint_offsets", "a tensor");
    GDN_REQUIRE(check, every != 0 || !before.defined(), "states_before", "None without checkpoint_every", "a tensor");
    const Batch batch{prepared.sequences, prepared.tokens, cu_seqlens.defined(), prepared.x, "x"};
    if (offsets.defined()) {
        check_checkpoint_offsets(check, offsets, cu_seqlens, batch);
        args.offsets = tagged(offsets);
    }
    if (boundaries.defined()) {
        GDN_REQUIRE(check, cu_seqlens.defined(), "boundaries", "None without cu_seqlens", "a tensor");
        check.rank("boundaries", boundaries, 1, "(rows + 1,)");
        check_indices(check, "boundaries", boundaries, batch);
        check.last_contiguous("boundaries", boundaries);
        GDN_REQUIRE(check, boundaries.size(0) >= 1, "boundaries", "at least one element", "none");
        if (boundaries.is_cpu()) check_boundaries(check, boundaries, cu_seqlens, prepared.tokens);
        args.boundaries = tagged(boundaries);
        args.boundary_count = check.count("boundaries", "elements", boundaries.size(0));
    }
    if (rows.defined()) {
        GDN_REQUIRE(check, args.reports(), "checkpoints", "None without checkpoint_every, checkpoint_offsets or boundaries",
                    "a tensor");
        check.rank("checkpoints", rows, 4, "(rows, H, P, N)");
        const int64_t count = offsets.defined()      ? prepared.sequences
                              : boundaries.defined() ? boundaries.size(0) - 1
                                                     : rows.size(0);
        prepared.args.checkpoints = args.checkpoints = check_rows(check, "checkpoints", rows, prepared, count);
        args.checkpoint_rows = check.count("checkpoints", "rows", count);
    }
    if (before.defined()) {
        check.rank("states_before", before, 4, "(rows, H, P, N)");
        prepared.args.states_before = args.before = check_rows(check, "states_before", before, prepared, before.size(0));
        args.before_rows = check.count("states_before", "rows", before.size(0));
    }
    const SsdArgs& scan = prepared.args;
    args.cu_seqlens = scan.cu_seqlens, args.sequences = scan.sequences, args.tokens = scan.tokens, args.heads = scan.heads;
    args.head_elements = prepared.channels * prepared.states;
    // A piece's last chunk may be shorter.
    const int64_t pieces = offsets.defined() ? prepared.sequences : args.boundary_count;
    prepared.steps.slots = check.count("x", "chunks", prepared.slots() + pieces);
}

}  // namespace gdn_cuda::ssd
