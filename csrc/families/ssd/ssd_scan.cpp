// ssd_scan, with a pool of states too, and ssd_summary: Mamba-2's scan, by ssd/prefill or ssd/prefill_mma.
#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "../../operators/new_tensor.hpp"
#include "../../operators/packed.hpp"
#include "../../operators/state_slots.hpp"
#include "../common/state_scales.hpp"
#include "../common/uncovered_zeros.hpp"
#include "../gdn/move_states.hpp"
#include "call.hpp"

namespace gdn_cuda::ssd {
namespace {

// Writes the output and the last states, of any float dtype, to the caller's tensors.
struct SsdScanInto : SsdScan {
    static constexpr const char* name = "ssd_scan_into";

    GDN_FIELDS(x, dt, A, B, C, dt_softplus, D, dt_bias, cu_seqlens, last_state, initial_state, write_indices, z,
               has_initial_state, seq_idx, dt_lowest, dt_highest, deterministic, reported, out)
};
// With a pool of states, which hides the member of the same name, and so do its slots.
struct SsdScanPool : SsdScan {
    static constexpr const char* name = "ssd_scan_pool";
    Written initial_state;
    Given state_indices;

    GDN_FIELDS(x, dt, A, B, C, dt_softplus, D, dt_bias, initial_state, state_indices, cu_seqlens, has_initial_state, z,
               write_indices, state_scales, update_state, dt_lowest, dt_highest, deterministic, reported, out)
};

// What a call writes shares no byte with what it reads: the tensors that every call has, and `read`.
void check_apart(const Checks& check, const SsdViews& x, const SsdCheckpoints& reported, std::initializer_list<Memory> written,
                 std::initializer_list<Memory> read) {
    check.apart(written, {{"x", x.x},
                          {"dt", x.dt},
                          {"A", x.A},
                          {"B", x.B},
                          {"C", x.C},
                          {"D", x.D},
                          {"z", x.z},
                          {"dt_bias", x.dt_bias},
                          {"cu_seqlens", x.cu_seqlens},
                          {"seq_idx", x.seq_idx},
                          {"has_initial_state", x.has_initial_state},
                          {"checkpoint_offsets", view_of(reported.checkpoint_offsets)},
                          {"boundaries", view_of(reported.boundaries)}});
    check.apart(written, read);
}
void check_out(const Checks& check, const Prepared& prepared, const View& out) {
    check.shape("out", out, {prepared.batch, prepared.tokens, prepared.heads, prepared.channels}, "the shape of x");
    check.dtype("out", out, {prepared.io});
    check.device("out", out, prepared.x, "x");
    check.distinct("out", out);
}

void set_last_slots(const Checks& check, SsdArgs& args, const View& written, const Batch& batch, const char* pool_name,
                    const View& pool) {
    check_per_sequence(check, "write_indices", written, batch);
    args.last_slots = tagged(written), args.last_slot_count = check.count(pool_name, "slots", pool.size(0));
}

PreparedScan prepare_into(const SsdScanInto& call, const SsdViews& views) {
    const Checks check{SsdScan::name};
    PreparedScan prepared{prepare(check, call, views)};
    SsdArgs& args = prepared.args;
    const View last = view_of(call.last_state), written = view_of(call.write_indices);
    if (last.defined()) {
        check.rank("last_state", last, 4, "(sequences or slots, H, P, N)");
        args.passes[0].last =
            check_states(check, "last_state", last, prepared, written.defined() ? last.size(0) : prepared.sequences);
        check.distinct("last_state", last);
    }
    if (written.defined()) {
        GDN_REQUIRE(check, last.defined(), "write_indices", "None without last_state", "a tensor");
        set_last_slots(check, args, written,
                       {prepared.sequences, prepared.tokens, args.cu_seqlens.data != nullptr, prepared.x, "x"}, "last_state",
                       last);
    }
    check_out(check, prepared, views.out);
    check_checkpoints(check, prepared, call.reported, views.cu_seqlens);
    check_apart(check, views, call.reported,
                {{"last_state", last},
                 {"out", views.out},
                 {"checkpoints", view_of(call.reported.checkpoints)},
                 {"states_before", view_of(call.reported.states_before)}},
                {{"initial_state", views.initial_state}, {"write_indices", written}});
    return prepared;
}
PreparedScan prepare_pool(const SsdScanPool& call, const SsdViews& views) {
    const Checks check{SsdScan::name};
    PreparedScan prepared{prepare(check, call, views)};
    SsdArgs& args = prepared.args;
    const View pool(call.initial_state), slots(call.state_indices), written = view_of(call.write_indices),
                                                                    scales = view_of(call.state_scales), none;
    check.rank("initial_state", pool, 4, "(slots, H, P, N)");
    args.passes[0].initial = check_states(check, "initial_state", pool, prepared, pool.size(0), true);
    check_state_scales(check, "initial_state", pool, "state_scales", scales, 1,
                       prepared.io == DType::f64 ? DType::f64 : DType::f32, "N");
    check.distinct("initial_state", pool);
    const Batch batch{prepared.sequences, prepared.tokens, args.cu_seqlens.data != nullptr, prepared.x, "x"};
    check_indices(check, "state_indices", slots, batch);
    check.shape("state_indices", slots, {prepared.sequences}, "(sequences,)");
    set_slots(check, args, {.pool_name = "initial_state", .slots_name = "state_indices", .pool = pool, .slots = slots});
    if (call.update_state) args.passes[0].last = args.passes[0].initial;
    if (written.defined()) {
        GDN_REQUIRE(check, call.update_state, "write_indices", "None without update_state", "a tensor");
        set_last_slots(check, args, written, batch, "initial_state", pool);
    }
    check_out(check, prepared, views.out);
    check_checkpoints(check, prepared, call.reported, views.cu_seqlens);
    check_apart(check, views, call.reported,
                {{"initial_state", call.update_state ? pool : none},
                 {"state_scales", call.update_state ? scales : none},
                 {"out", views.out},
                 {"checkpoints", view_of(call.reported.checkpoints)},
                 {"states_before", view_of(call.reported.states_before)}},
                {{"state_indices", slots},
                 {"write_indices", written},
                 {"initial_state", call.update_state ? none : pool},
                 {"state_scales", call.update_state ? none : scales}});
    return prepared;
}

bool reports(const SsdCheckpoints& x) {
    return x.checkpoint_every != 0 || x.checkpoint_offsets || x.boundaries;
}

// Runs a prepared call, whose states go where the caller wants them. `out`: of 4 dimensions.
void run(const PreparedScan& prepared, const SsdScan& call, const SsdViews& views, const View& out) {
    require_kernel({SsdScan::name}, prepared);
    const View &x = views.x, &z = views.z;
    const DeviceScope scope(x.device_index);
    const Target target = target_of(SsdScan::name, x);
    SsdMmaArgs every{.scan = prepared.args, .x = {}, .z = {}, .B = {}, .C = {}};
    SsdArgs& args = every.scan;
    Inputs inputs{prepared, target};
    const bool by_mma = uses_mma(target);
    if (prepared.sequences == 0)
        for (OptionalTensor rows : {call.reported.checkpoints, call.reported.states_before})
            if (rows) torch::stable::zero_(*rows);
    if (x.numel() > 0 && by_mma) {
        every.x = inputs.add_rows(x, call.x), every.B = inputs.add_rows(views.B, call.B);
        every.C = inputs.add_rows(views.C, call.C);
        if (z.defined()) every.z = inputs.add_rows(z, *call.z);
    } else if (x.numel() > 0) {
        args.passes[0].x = inputs.add(x, call.x), args.passes[0].B = inputs.add(views.B, call.B);
        args.C = inputs.add(views.C, call.C), args.out = inputs.map(tiled(out));
        if (z.defined()) args.z = inputs.add(z, *call.z);
    }
    if (args.cu_seqlens.data != nullptr) {
        const i64 bytes = prepared.heads * prepared.channels * bytes_of(prepared.io);
        inputs.packed_out = {
            .data = out.data, .token = out.strides[1] * bytes_of(prepared.io), .rows = 1, .bytes = static_cast<int>(bytes)};
        if (prepared.sequences == 0)  // no block of ssd/steps may run
            common::UncoveredZeros::run({inputs.packed_out}, args.cu_seqlens, args.sequences, args.tokens, target);
    }
    args.table = inputs.table(prepared.checkpoints);
    args.out_data = out.data;
    args.out_batch = out.strides[0], args.out_token = out.strides[1], args.out_head = out.strides[2];
    if (by_mma)
        inputs.run(every, z.defined());
    else
        inputs.run(args, z.defined());
}
Tensor new_out(const Prepared& x) {
    return new_tensor(x.x, {x.batch, x.tokens, x.heads, x.channels}, x.x.dtype);
}
// The same to the caller's `out`.
void run_into(const PreparedScan& prepared, const SsdScan& call, const SsdViews& views) {
    if (views.out.contiguous_tail(2) && jit::can_tile(tiled(views.out))) return run(prepared, call, views, views.out);
    const Tensor found = new_out(prepared);
    run(prepared, call, views, View(found));
    Tensor to = call.out;
    torch::stable::copy_(to, to.dim() == 3 ? torch::stable::select(found, 0, 0) : found);
}

void check_scan(const SsdScan& call) {
    prepare({call.name}, call, SsdViews(call));
}
std::tuple<Tensor, Tensor> run_scan(const SsdScan& call) {
    const SsdViews views(call);
    PreparedScan prepared{prepare({call.name}, call, views)};
    const Tensor last = new_last_states(prepared), out = new_out(prepared);
    run(prepared, call, views, View(out));
    return {out, last};
}
void check_into(const SsdScanInto& call) {
    prepare_into(call, SsdViews(call, true));
}
void run_scan_into(const SsdScanInto& call) {
    const SsdViews views(call, true);
    run_into(prepare_into(call, views), call, views);
}
void check_pool(const SsdScanPool& call) {
    prepare_pool(call, SsdViews(call, true));
}
// An int8 pool: states pass through dense fp32 ones, which gdn/move_states copies from the slots and to them.
void run_coded_pool(PreparedScan& prepared, const SsdScanPool& call, const SsdViews& views) {
    require_kernel({SsdScan::name}, prepared);
    SsdArgs& args = prepared.args;
    const View pool(call.initial_state), scales(*call.state_scales);
    const int64_t count = prepared.sequences, head = prepared.channels * prepared.states;
    const Tensor states =
        new_tensor(prepared.x, {count, prepared.heads, prepared.channels, prepared.states}, torch_numbers.f32);
    const Tensor dense_slots = new_tensor(prepared.x, {count}, torch_numbers.i64);
    gdn::MoveStatesArgs move{};
    move.call.initial = {.data = pool.data,
                         .slot = pool.stride(0),
                         .head = head,
                         .row = prepared.states,
                         .column = 1,
                         .type = DType::i8,
                         .scales = static_cast<float*>(scales.data),
                         .scales_slot = scales.stride(0)};
    move.call.last = move.call.initial;
    move.call.sequences = args.sequences, move.call.tokens = args.tokens, move.call.cu_seqlens = args.cu_seqlens;
    move.call.heads = static_cast<int>(prepared.heads);
    move.call.dv = static_cast<int>(prepared.channels), move.call.dk = static_cast<int>(prepared.states);
    move.call.slots = args.slots, move.call.slots_sequence = args.slots_sequence, move.call.slot_count = args.slot_count;
    move.call.slot_steps = 1, move.call.null_slot = -1, move.call.has_initial = args.has_initial;
    move.call.last_slots = args.last_slots, move.call.last_slot_count = args.last_slot_count;
    move.from =
        move.to = {.data = memory_of(states), .slot = prepared.heads * head, .head = head, .row = prepared.states, .column = 1};
    move.rows = count, move.dense_slots = static_cast<i64*>(memory_of(dense_slots));
    const DeviceScope scope(prepared.x.device_index);
    const Target target = target_of(SsdScan::name, prepared.x);
    gdn::MoveStates::run(gdn::StatesMove::gather, move, target);
    args.passes[0].initial = {.data = move.to.data, .type = DType::f32, .slot = move.to.slot, .head = move.to.head};
    if (call.update_state) args.passes[0].last = args.passes[0].initial;
    args.slots = {move.dense_slots, DType::i64}, args.slots_sequence = 1, args.slot_count = args.sequences;
    args.last_slots = {};
    run_into(prepared, call, views);
    if (call.update_state) gdn::MoveStates::run(gdn::StatesMove::scatter, move, target);
}

void run_pool(const SsdScanPool& call) {
    const SsdViews views(call, true);
    PreparedScan prepared = prepare_pool(call, views);
    if (call.state_scales)
        run_coded_pool(prepared, call, views);
    else
        run_into(prepared, call, views);
}

Prepared prepare_summary(const SsdSummary& x) {
    const SsdScan scan{.x = x.x,
                       .dt = x.dt,
                       .A = x.A,
                       .B = x.B,
                       .C = x.B,
                       .dt_bias = x.dt_bias,
                       .initial_state = x.initial_state,
                       .cu_seqlens = x.cu_seqlens,
                       .dt_softplus = x.dt_softplus,
                       .dt_lowest = x.dt_lowest,
                       .dt_highest = x.dt_highest};
    return prepare({x.name}, scan, SsdViews(scan));
}
std::tuple<Tensor, Tensor> run_summary(const SsdSummary& call) {
    Prepared prepared = prepare_summary(call);
    require_kernel({call.name}, prepared);
    const DeviceScope scope(prepared.x.device_index);
    const Target target = target_of(call.name, prepared.x);
    const Tensor last = new_last_states(prepared);
    const Tensor decay = new_tensor(prepared.x, {prepared.sequences, prepared.heads}, torch_numbers.f32);
    SsdMmaArgs every{.scan = prepared.args, .x = {}, .z = {}, .B = {}, .C = {}};
    SsdArgs& args = every.scan;
    Inputs inputs{prepared, target};
    const bool by_mma = uses_mma(target);
    if (prepared.x.numel() > 0 && by_mma)
        every.x = inputs.add_rows(call.x), every.B = inputs.add_rows(call.B);
    else if (prepared.x.numel() > 0)
        args.passes[0].x = inputs.add(call.x), args.passes[0].B = inputs.add(call.B);
    args.states_only = true, args.decay = static_cast<float*>(memory_of(decay));
    if (by_mma)
        inputs.run(every, false);
    else
        inputs.run(args, false);
    return {last, decay};
}

GDN_REGISTER(SsdScan, check_scan, run_scan)
GDN_REGISTER(SsdSummary, prepare_summary, run_summary)
GDN_REGISTER(SsdScanInto, check_into, run_scan_into)
GDN_REGISTER(SsdScanPool, check_pool, run_pool)

}  // namespace
}  // namespace gdn_cuda::ssd

namespace gdn_cuda {

std::tuple<Tensor, Tensor> ssd_scan(const SsdScan& x) {
    require_given(x.name, x);
    if (ssd::reports(x.reported) && !x.reported.checkpoints)
        fail(x.name, "checkpoints", "a tensor with checkpoint_every, checkpoint_offsets or boundaries", "none");
    if (!x.state_indices) {
        if (x.write_indices && !x.last_state)
            fail(x.name, "write_indices", "none without state_indices or last_state", "a tensor");
        if (!x.update_state) fail(x.name, "update_state", "true without state_indices", "false");
        if (x.state_scales) fail(x.name, "state_scales", "none without state_indices", "a tensor");
        if (!x.out && !x.last_state && !ssd::reports(x.reported)) return call<SsdScan, ssd::run_scan>(x);
    } else {
        if (!x.initial_state) fail(x.name, "initial_state", "a pool (slots, H, P, N) with state_indices", "none");
        if (x.seq_idx) fail(x.name, "seq_idx", "none with state_indices", "a tensor");
        if (x.last_state) fail(x.name, "last_state", "none with state_indices", "a tensor");
    }
    SsdScan into = x;
    if (!into.out) into = with_output_like(x.x, into);
    if (x.state_indices) {
        into.initial_state.reset();  // the pool is another member
        call<ssd::SsdScanPool, ssd::run_pool>({into, *x.initial_state, *x.state_indices});
        return {into.out, *x.initial_state};
    }
    if (!into.last_state) {
        const View sizes(x.x), B(x.B);
        const int64_t sequences = x.cu_seqlens ? x.cu_seqlens->size(0) - 1 : sizes.size(0);
        into.last_state = new_tensor(x.x, {sequences, sizes.size(-2), sizes.size(-1), B.size(-1)}, ScalarType::Float);
    }
    call<ssd::SsdScanInto, ssd::run_scan_into>({into});
    return {into.out, *into.last_state};
}
GDN_FUNCTION(ssd_summary, SsdSummary, ssd::run_summary)

}  // namespace gdn_cuda
