// ssd_replay_decode: Mamba-2's decode from a state that lacks the last tokens, which a ring beside the pool holds.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <gdn_cuda/ssd.hpp>
#include <vector>

#include "../../operators/float64.hpp"
#include "../../operators/operator.hpp"
#include "../../operators/packed.hpp"
#include "../../operators/state_slots.hpp"
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

// A tensor of the ring: every slot's entries are whole rows, which the kernel copies 16 bytes at a time.
void check_ring(const Checks& check, const char* argument, const View& ring, std::initializer_list<int64_t> shape,
                const char* layout, DType type, const View& x) {
    check.shape(argument, ring, shape, layout);
    check.dtype(argument, ring, {type});
    check.device(argument, ring, x, "x");
    check.distinct(argument, ring);
    if (ring.rank < 4) return;
    check.last_contiguous(argument, ring);
    GDN_REQUIRE(check, type == DType::f64 || ring.aligned16(), argument, "rows that begin at multiples of 16 bytes",
                stride_text(ring));
}

PreparedReplay prepare_replay(const SsdReplayDecode& call) {
    const Checks check{call.name};
    const View x(call.x), dt(call.dt), A(call.A), B(call.B), C(call.C), pool(call.state_pool), out(call.out),
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
    GDN_REQUIRE(check, packed || tokens <= kMostReplayTokens, "x", fmt::format("at most {} tokens", kMostReplayTokens),
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

    check.rank("state_pool", pool, 4, "(slots, H, P, N)");
    const int64_t slots = pool.size(0);
    check.shape("state_pool", pool, {slots, heads, channels, states}, "(slots, H, P, N)");
    const DType state = dtype_beside(check, "state_pool", pool, io);
    check.device("state_pool", pool, x, "x");
    GDN_REQUIRE(check, pool.contiguous_tail(3) && (state == DType::f64 || pool.aligned16()), "state_pool",
                "contiguous states that begin at multiples of 16 bytes", stride_text(pool));
    check.distinct("state_pool", pool);
    args.pool = pool.data;
    args.pool_slot = pool.stride(0);
    const View indices = view_of(call.state_indices), accepted = accepted_of(call.verify);
    const Batch sequences_of_call{sequences, tokens, packed, x, "x"};
    check_slots(check, {.pool_name = "state_pool", .slots_name = "state_indices", .pool = pool, .slots = indices},
                sequences_of_call);
    GDN_REQUIRE(check, !indices.defined() || indices.rank == 1, "state_indices", "(sequences,), a slot each",
                shape_text(indices));
    args.slots = tagged(indices);
    args.slots_sequence = indices.defined() ? indices.stride(0) : 0;
    args.slot_count = check.count("state_pool", "slots", slots);
    args.null_slot = check_null_slot(check, call.null_slot);
    args.accepted = check_accepted(check, accepted, sequences_of_call);
    args.fold = call.fold;
    const View fold_mask = view_of(call.fold_mask);
    if (fold_mask.defined()) {
        check.shape("fold_mask", fold_mask, {sequences}, "(sequences,)");
        GDN_REQUIRE(check, fold_mask.dtype == torch_numbers.boolean, "fold_mask", "bool", dtype_name(fold_mask));
        check.device("fold_mask", fold_mask, x, "x");
        check.last_contiguous("fold_mask", fold_mask);
        args.fold_mask = static_cast<const bool*>(fold_mask.data);
    }

    const View x_ring(call.x_ring), B_ring(call.B_ring), delta_ring(call.delta_ring), pending(call.pending);
    check.rank("x_ring", x_ring, 4, "(slots, W, H, P)");
    const int64_t entries = x_ring.size(1);
    GDN_REQUIRE(check, entries >= 1 && entries <= ReplayStepConfig::kEntries, "x_ring",
                fmt::format("room for 1 to {} tokens in each slot", ReplayStepConfig::kEntries), shape_text(x_ring));
    GDN_REQUIRE(check, packed || !accepted.defined() || tokens <= entries, "x",
                fmt::format("at most {} tokens, as x_ring {} has room for no more", entries, shape_text(x_ring)),
                shape_text(x));
    check_ring(check, "x_ring", x_ring, {slots, entries, heads, channels}, "(slots, W, H, P)", io, x);
    check_ring(check, "B_ring", B_ring, {slots, entries, groups, states}, "(slots, W, G, N)", io, x);
    check_ring(check, "delta_ring", delta_ring, {slots, entries, heads}, "(slots, W, H)",
               io == DType::f64 ? DType::f64 : DType::f32, x);
    check_ring(check, "pending", pending, {slots}, "(slots,)", DType::i32, x);
    check.last_contiguous("pending", pending);
    args.ring_x = x_ring.data;
    args.ring_x_slot = x_ring.stride(0), args.ring_x_entry = x_ring.stride(1), args.ring_x_head = x_ring.stride(2);
    args.ring_B = B_ring.data;
    args.ring_B_slot = B_ring.stride(0), args.ring_B_entry = B_ring.stride(1), args.ring_B_group = B_ring.stride(2);
    args.ring_delta = static_cast<float*>(delta_ring.data);
    args.ring_delta_slot = delta_ring.stride(0), args.ring_delta_entry = delta_ring.stride(1),
    args.ring_delta_head = delta_ring.stride(2);
    args.pending = static_cast<unsigned*>(pending.data);
    args.entries = static_cast<int>(entries);

    const std::initializer_list<Memory> written = {{"state_pool", pool},       {"x_ring", x_ring},   {"B_ring", B_ring},
                                                   {"delta_ring", delta_ring}, {"pending", pending}, {"out", out}};
    check.apart(written, {{"x", x},
                          {"dt", dt},
                          {"A", A},
                          {"B", B},
                          {"C", C},
                          {"D", D},
                          {"z", z},
                          {"dt_bias", dt_bias},
                          {"cu_seqlens", cu_seqlens},
                          {"state_indices", indices},
                          {"fold_mask", fold_mask},
                          {kAcceptedTokens, accepted}});
    prepared.problem = {.sequences = sequences,
                        .tokens = packed ? kMostReplayTokens : static_cast<int>(tokens),
                        .heads = args.heads,
                        .groups = args.groups,
                        .channels = args.channels,
                        .states = args.states,
                        .io = io,
                        .state = state};
    constexpr i64 kMostBlocksOfSequence = (1 << (32 - kPendingBits)) - 1;
    const Blocks blocks = replay_step_blocks(prepared.problem, ReplayStepConfig::groups());
    GDN_REQUIRE(check, blocks[0] * blocks[1] <= kMostBlocksOfSequence, "x",
                fmt::format("at most {} channels in all heads", kMostBlocksOfSequence * ReplayStepConfig::groups()),
                fmt::format("{}", heads * channels));
    check.grid("x", blocks);
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
