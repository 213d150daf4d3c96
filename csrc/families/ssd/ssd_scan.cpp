// ssd_scan, with a pool of states too, and ssd_summary: Mamba-2's scan, by ssd/prefill or ssd/prefill_mma.
#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "../../operators/packed.hpp"
#include "../../operators/state_slots.hpp"
#include "../common/uncovered_zeros.hpp"
#include "call.hpp"

namespace gdn_cuda::ssd {
namespace {

// With a pool of states (slots, H, P, N), of which sequences read and write those in their slots.
struct SsdScanPoolCall : SsdScanCall {
    static constexpr const char* name = "ssd_scan_pool";
    Written state;
    Given state_indices;
    OptionalTensor write_indices;
    bool update_state = true;

    GDN_FIELDS(x, dt, A, B, C, D, z, dt_bias, state, state_indices, cu_seqlens, has_initial_state, write_indices, update_state,
               dt_softplus, dt_lowest, dt_highest)
};

// The state after sequences, and their decays. C, D and z have no part in them.
struct SsdSummaryCall {
    static constexpr const char* name = "ssd_summary";
    Given x, dt, A, B;
    OptionalTensor dt_bias, initial_state, cu_seqlens;
    bool dt_softplus = false;
    double dt_lowest = 0, dt_highest = 0;

    GDN_FIELDS(x, dt, A, B, dt_bias, initial_state, cu_seqlens, dt_softplus, dt_lowest, dt_highest)
};

Prepared prepare_scan(const SsdScanCall& call) {
    return prepare({call.name}, call);
}
Prepared prepare_pool(const SsdScanPoolCall& call) {
    const Checks check{SsdScanCall::name};
    Prepared prepared = prepare(check, call);
    SsdArgs& args = prepared.args;
    const View state(call.state), slots(call.state_indices), written = view_of(call.write_indices), none;
    check.rank("state", state, 4, "(slots, H, P, N)");
    args.passes[0].initial = check_states(check, "state", state, prepared, state.size(0));
    check.distinct("state", state);
    const Batch batch{prepared.sequences, prepared.tokens, args.cu_seqlens.data != nullptr, prepared.x, "x"};
    check_indices(check, "state_indices", slots, batch);
    check.shape("state_indices", slots, {prepared.sequences}, "(sequences,)");
    set_slots(check, args, {.pool_name = "state", .slots_name = "state_indices", .pool = state, .slots = slots});
    if (call.update_state) args.passes[0].last = args.passes[0].initial;
    if (written.defined()) {
        GDN_REQUIRE(check, call.update_state, "write_indices", "None without update_state", "a tensor");
        check_per_sequence(check, "write_indices", written, batch);
        args.last_slots = tagged(written), args.last_slot_count = args.slot_count;
    }
    check.apart({{"state", call.update_state ? state : none}}, {{"x", prepared.x},
                                                                {"dt", View(call.dt)},
                                                                {"A", View(call.A)},
                                                                {"B", View(call.B)},
                                                                {"C", View(call.C)},
                                                                {"D", view_of(call.D)},
                                                                {"z", view_of(call.z)},
                                                                {"dt_bias", view_of(call.dt_bias)},
                                                                {"state_indices", slots},
                                                                {"cu_seqlens", view_of(call.cu_seqlens)},
                                                                {"has_initial_state", view_of(call.has_initial_state)},
                                                                {"write_indices", written}});
    return prepared;
}

// Runs a prepared call, whose states go where the caller wants them.
Tensor run(const Prepared& prepared, const SsdScanCall& call) {
    require_kernel({SsdScanCall::name}, prepared);
    const View &x = prepared.x, z = view_of(call.z);
    const Tensor out = torch::stable::new_empty(call.x, {prepared.batch, prepared.tokens, prepared.heads, prepared.channels});
    const DeviceScope scope(x.device_index);
    const Target target = target_of(SsdScanCall::name, x);
    SsdMmaArgs every{.scan = prepared.args, .x = {}, .z = {}, .B = {}, .C = {}};
    SsdArgs& args = every.scan;
    Inputs inputs{prepared, target};
    const bool by_mma = uses_mma(target);
    if (x.numel() > 0 && by_mma) {
        every.x = inputs.add_rows(call.x), every.B = inputs.add_rows(call.B), every.C = inputs.add_rows(call.C);
        if (z.defined()) every.z = inputs.add_rows(*call.z);
    } else if (x.numel() > 0) {
        args.passes[0].x = inputs.add(call.x), args.passes[0].B = inputs.add(call.B), args.C = inputs.add(call.C),
        args.out = inputs.map(out);
        if (z.defined()) args.z = inputs.add(*call.z);
    }
    const View written(out);
    if (args.cu_seqlens.data != nullptr) {
        const i64 bytes = prepared.heads * prepared.channels * bytes_of(prepared.io);
        common::UncoveredZeros::run({{.data = memory_of(out), .token = bytes, .rows = 1, .bytes = static_cast<int>(bytes)}},
                                    args.cu_seqlens, args.sequences, args.tokens, target);
    }
    args.steps = inputs.steps(call.x);
    args.out_data = memory_of(out);
    args.out_batch = written.strides[0], args.out_token = written.strides[1], args.out_head = written.strides[2];
    if (by_mma)
        inputs.run(every, z.defined(), call.x);
    else
        inputs.run(args, z.defined(), call.x);
    return out;
}

std::tuple<Tensor, Tensor> run_scan(const SsdScanCall& call) {
    Prepared prepared = prepare_scan(call);
    const Tensor last = new_last_states(prepared, call.x);
    return {run(prepared, call), last};
}
Tensor run_pool(const SsdScanPoolCall& call) {
    return run(prepare_pool(call), call);
}

Prepared prepare_summary(const SsdSummaryCall& x) {
    return prepare({x.name}, {.x = x.x,
                              .dt = x.dt,
                              .A = x.A,
                              .B = x.B,
                              .C = x.B,
                              .dt_bias = x.dt_bias,
                              .initial_state = x.initial_state,
                              .cu_seqlens = x.cu_seqlens,
                              .dt_softplus = x.dt_softplus,
                              .dt_lowest = x.dt_lowest,
                              .dt_highest = x.dt_highest});
}
std::tuple<Tensor, Tensor> run_summary(const SsdSummaryCall& call) {
    Prepared prepared = prepare_summary(call);
    require_kernel({call.name}, prepared);
    const DeviceScope scope(prepared.x.device_index);
    const Target target = target_of(call.name, prepared.x);
    const Tensor last = new_last_states(prepared, call.x);
    const Tensor decay = torch::stable::new_empty(call.x, {prepared.sequences, prepared.heads}, ScalarType::Float);
    SsdMmaArgs every{.scan = prepared.args, .x = {}, .z = {}, .B = {}, .C = {}};
    SsdArgs& args = every.scan;
    Inputs inputs{prepared, target};
    const bool by_mma = uses_mma(target);
    if (prepared.x.numel() > 0 && by_mma)
        every.x = inputs.add_rows(call.x), every.B = inputs.add_rows(call.B);
    else if (prepared.x.numel() > 0)
        args.passes[0].x = inputs.add(call.x), args.passes[0].B = inputs.add(call.B);
    args.steps = inputs.steps(call.x);
    args.states_only = true, args.decay = static_cast<float*>(memory_of(decay));
    if (by_mma)
        inputs.run(every, false, call.x);
    else
        inputs.run(args, false, call.x);
    return {last, decay};
}

GDN_REGISTER(SsdScanCall, prepare_scan, run_scan)
GDN_REGISTER(SsdSummaryCall, prepare_summary, run_summary)
GDN_REGISTER(SsdScanPoolCall, prepare_pool, run_pool)

}  // namespace
}  // namespace gdn_cuda::ssd
