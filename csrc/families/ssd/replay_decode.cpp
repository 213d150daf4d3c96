// ssd_replay_decode: Mamba-2's decode from a state that lacks the last tokens, which a ring beside the pool holds.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <gdn_cuda/ssd.hpp>
#include <vector>

#include "../../operators/float64.hpp"
#include "../../operators/operator.hpp"
#include "../../operators/packed.hpp"
#include "../common/ring.hpp"
#include "parameters.hpp"
#include "replay_step.hpp"

namespace gdn_cuda::ssd {
namespace {

struct PreparedReplay {
    View x;
    ReplayStepProblem problem;
    ReplayStepArgs args{};
};

void check_rows(const Checks& check, const char* argument, const View& rows, const View& x) {
    check.dtype(argument, rows, {*dtype_of(x)});
    check.device(argument, rows, x, "x");
    check.last_contiguous(argument, rows);
}

PreparedReplay prepare_replay(const SsdReplayDecode& call) {
    const Checks check{call.name};
    const View x(call.x), dt(call.dt), A(call.A), B(call.B), C(call.C), out(call.out),
        cu_seqlens = view_of(call.cu_seqlens), z = view_of(call.z), D = view_of(call.D), dt_bias = view_of(call.dt_bias);
    const bool packed = cu_seqlens.defined();
    check.rank("x", x, packed ? 3 : 4, packed ? "(N, H, P), as cu_seqlens packs sequences" : "(B, T, H, P)");
    const DType io = dtype_or_f64(check, "x", x, {DType::bf16, DType::f16, DType::f32});
    check.last_contiguous("x", x);
    const int64_t batch = packed ? 1 : x.size(0), tokens = x.size(packed ? 0 : 1), heads = x.size(-2), channels = x.size(-1);
    const auto shape = [&](const char* argument, const View& view, std::initializer_list<int64_t> last, const char* layout) {
        std::vector<int64_t> sizes;
        if (!packed) sizes.push_back(batch);
        sizes.push_back(tokens);
        sizes.insert(sizes.end(), last);
        GDN_REQUIRE(check, view.rank == static_cast<int>(sizes.size()) && std::equal(sizes.begin(), sizes.end(), view.sizes),
                    argument, fmt::format("{} = ({})", layout, fmt::join(sizes, ", ")), shape_text(view));
    };
    shape("dt", dt, {heads}, packed ? "(N, H)" : "(B, T, H)");
    check.dtype("dt", dt, {DType::bf16, DType::f16, DType::f32, DType::f64});
    check.device("dt", dt, x, "x");
    check.rank("B", B, x.rank, packed ? "(N, G, N)" : "(B, T, G, N)");
    const int64_t groups = B.size(-2), states = B.size(-1);
    GDN_REQUIRE(check, groups >= 1 && heads % groups == 0, "B",
                fmt::format("a number of groups that divides the {} heads", heads), fmt::format("{}", groups));
    for (const auto& [argument, view] : {std::pair{"B", &B}, {"C", &C}}) {
        shape(argument, *view, {groups, states}, packed ? "(N, G, N)" : "(B, T, G, N)");
        check_rows(check, argument, *view, x);
    }
    if (z.defined()) {
        shape("z", z, {heads, channels}, "the shape of x");
        check_rows(check, "z", z, x);
    }
    shape("out", out, {heads, channels}, "the shape of x");
    check_rows(check, "out", out, x);
    check.distinct("out", out);
    GDN_REQUIRE(check, channels >= 1 && channels % 8 == 0, "x", "channels of a head that are a multiple of 8",
                fmt::format("{}", channels));
    GDN_REQUIRE(check, states >= 1 && states % 8 == 0 && states <= kMostReplayStates, "B",
                fmt::format("states that are a multiple of 8, at most {}", kMostReplayStates), fmt::format("{}", states));
    GDN_REQUIRE(check, packed || tokens <= kMostRingTokens, "x", fmt::format("at most {} tokens", kMostRingTokens),
                shape_text(x));
    if (packed) check_cu_seqlens(check, cu_seqlens, tokens, x, "x");
    const int64_t sequences = packed ? cu_seqlens.size(0) - 1 : batch;

    PreparedReplay prepared{.x = x, .problem = {}};
    ReplayStepArgs& args = prepared.args;
    args.x = rows_of(x), args.out = rows_of(out), args.B = rows_of(B), args.C = rows_of(C);
    if (z.defined()) args.z = rows_of(z);
    args.whole_units = x.aligned16() && B.aligned16() && C.aligned16();
    args.dt = scalars_of(dt);
    args.A = per_head(check, "A", A, x, heads);
    args.dt_bias = per_head(check, "dt_bias", dt_bias, x, heads);
    args.D = per_channel(check, "D", D, x, heads, channels);
    check_limits(check, call.dt_lowest, call.dt_highest);
    args.lowest = static_cast<float>(call.dt_lowest), args.highest = static_cast<float>(call.dt_highest);
    args.softplus = call.dt_softplus;
    args.sequences = check.count("x", "sequences", sequences);
    args.tokens = check.count("x", "tokens", tokens, kMaxTokens);
    args.heads = check.count("x", "heads", heads);
    args.groups = static_cast<int>(groups);
    args.group_heads = static_cast<int>(heads / groups);
    args.channels = check.count("x", "channels of a head", channels);
    args.states = static_cast<int>(states);
    args.cu_seqlens = tagged(cu_seqlens);

    const RingTensors ring(call);
    const View x_ring(call.x_ring), B_ring(call.B_ring), delta_ring(call.delta_ring);
    const Batch sequences_of_call{sequences, tokens, packed, x, "x"};
    check.rank("state_pool", ring.pool, 4, "(slots, H, P, N)");
    const int64_t slots = ring.pool.size(0);
    const DType state =
        check_ring_pool(check, args, ring, {slots, heads, channels, states}, "(slots, H, P, N)", "N", io, sequences_of_call);
    GDN_REQUIRE(check, has_replay_step(io, state), "x", "bfloat16 or float16, as state_pool is int8", dtype_name(x));
    check_ring_room(check, args, ring, "x_ring", x_ring, "(slots, W, H, P)", sequences_of_call);
    const int64_t entries = args.entries;
    args.x_ring =
        check_ring(check, "x_ring", x_ring, {slots, entries, heads, channels}, "(slots, W, H, P)", io, sequences_of_call);
    args.B_ring =
        check_ring(check, "B_ring", B_ring, {slots, entries, groups, states}, "(slots, W, G, N)", io, sequences_of_call);
    args.delta_ring = check_ring(check, "delta_ring", delta_ring, {slots, entries, heads}, "(slots, W, H)",
                                 io == DType::f64 ? DType::f64 : DType::f32, sequences_of_call);
    check_ring_pending(check, args, ring, sequences_of_call);

    const std::initializer_list<Memory> written = {
        {"state_pool", ring.pool},  {"state_scales", ring.scales}, {"x_ring", x_ring}, {"B_ring", B_ring},
        {"delta_ring", delta_ring}, {"pending", ring.pending},     {"out", out}};
    check.apart(written, {{"x", x},
                          {"dt", dt},
                          {"A", A},
                          {"B", B},
                          {"C", C},
                          {"D", D},
                          {"z", z},
                          {"dt_bias", dt_bias},
                          {"cu_seqlens", cu_seqlens},
                          {"state_indices", ring.slots},
                          {"fold_mask", ring.fold_mask},
                          {kAcceptedTokens, ring.accepted}});
    prepared.problem = {.sequences = sequences,
                        .tokens = packed ? kMostRingTokens : static_cast<int>(tokens),
                        .heads = args.heads,
                        .groups = args.groups,
                        .channels = args.channels,
                        .states = args.states,
                        .io = io,
                        .state = state};
    check_ring_blocks(check, prepared.problem, "x", "x", "channels", heads * channels);
    return prepared;
}

void run_replay(const SsdReplayDecode& call) {
    const PreparedReplay prepared = prepare_replay(call);
    const DeviceScope scope(prepared.x.device_index);
    if (prepared.args.cu_seqlens.data != nullptr && prepared.args.sequences == 0) {
        Tensor out = call.out;
        torch::stable::zero_(out);
    }
    ReplayStep::run(prepared.problem, prepared.args, target_of(call.name, prepared.x));
}

GDN_REGISTER(SsdReplayDecode, prepare_replay, run_replay)

}  // namespace
}  // namespace gdn_cuda::ssd

namespace gdn_cuda {

Tensor ssd_replay_decode(const SsdReplayDecode& given) {
    return into_out<SsdReplayDecode, ssd::run_replay>(given, [](const auto& x) { return with_output_like(x.x, x); });
}

}  // namespace gdn_cuda
