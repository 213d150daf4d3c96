// Chooses the kernel for token-by-token calls: gdn/decode or gdn/verify where shapes allow, else gdn/recurrent.
#include "decode.hpp"
#include "decode_codes.hpp"
#include "prepared.hpp"
#include "recurrent.hpp"
#include "recurrent_any.hpp"
#include "verify.hpp"

namespace gdn_cuda::gdn {
namespace {

bool has_channel_gates(const GdnCall& args) {
    return args.channels.form != ChannelGate::none;
}

// The shapes that gdn/decode and gdn/verify require.
bool is_regular(const Prepared& prepared) {
    const Sequences& sequences = prepared.sequences;
    return !sequences.packed() && sequences.count <= kMaxGridYZ && prepared.aligned && has_exact_kernel(prepared.args.dk) &&
           prepared.args.outputs > 0;
}

// One token per sequence, one input slot and one output slot.
bool is_decode(const Prepared& prepared) {
    const GdnCall& args = prepared.args;
    const bool with_gates = args.gate.values.data != nullptr && args.beta.values.data != nullptr;
    const bool by_log = args.forms.gate == GateForms::log_decay && !args.forms.beta_is_logit &&
                        prepared.state_type != DType::i8;  // gdn/decode has codes with raw gates alone
    const bool fits = has_channel_gates(args) || (with_gates && (by_log || args.forms.fused()));
    return is_regular(prepared) && args.tokens == 1 && args.steps.data == nullptr && args.accepted.data == nullptr &&
           args.last.data != nullptr && args.last_slots.data == nullptr && args.has_initial == nullptr && fits;
}

std::string explain_by_token(const Prepared& prepared) {
    const GdnCall& args = prepared.args;
    if (!prepared.sequences.plain())
        return "float32, rows with gaps, head dimensions that are no multiples of 8, or more heads of query than of value: "
               "gdn/recurrent_any";
    if (!prepared.plain_states) return "states that are float16, of two dtypes, or not contiguous: gdn/recurrent_any";
    if (is_decode(prepared))
        return "one token a sequence, one state read and one written: gdn/decode, or gdn/decode_codes for int8 states of many "
               "heads";
    if (args.parents.data != nullptr) return "a tree of tokens: gdn/recurrent";
    if (prepared.sequences.packed()) return fmt::format("{} packed sequences: gdn/recurrent", args.sequences);
    if (args.outputs == 0) return "a summary, without outputs: gdn/recurrent";
    if (!is_regular(prepared))
        return fmt::format(
            "gdn/decode and gdn/verify have no code for this dk, for rows that do not start on 16 bytes, or for more than {} "
            "sequences: gdn/recurrent",
            kMaxGridYZ);
    return fmt::format("{} tokens of {} sequences: gdn/verify for up to {}, else gdn/recurrent", args.tokens, args.sequences,
                       kMostVerifyTokens);
}

DecodeArgs decode_args(const GdnCall& args) {
    const auto heads = [](const Rows& rows) { return DecodeArgs::Heads{rows.data, rows.batch, rows.head}; };
    const auto gates = [](const Scalars& scalars) { return DecodeArgs::Gates{scalars.values, scalars.batch, scalars.head}; };
    return {.query = heads(args.query),
            .key = heads(args.key),
            .value = heads(args.value),
            .output = heads(args.output),
            .beta = gates(args.beta),
            .gate = gates(args.gate),
            .beta_factor = args.forms.beta_factor,
            .A_log = args.A_log,
            .dt_bias = args.dt_bias,
            .heads_per_key = args.heads_per_key,
            .dv = args.dv,
            .steps = 1,
            .scale = args.scale,
            .qk_norm = args.qk_norm,
            .slots = args.slots,
            .slots_sequence = args.slots_sequence,
            .slot_count = args.slot_count,
            .null_slot = args.null_slot,
            .state_in = args.initial.data,
            .state_out = args.last.data,
            .state_in_slot = args.initial.slot,
            .state_out_slot = args.last.slot,
            .scales_in = args.initial.scales,
            .scales_out = args.last.scales,
            .scales_in_slot = args.initial.scales_slot,
            .scales_out_slot = args.last.scales_slot,
            .channels = args.channels,
            .forms = args.forms};
}

RecurrentAnyArgs recurrent_any_args(const Prepared& prepared) {
    const Sequences& sequences = prepared.sequences;
    const auto heads_per = [&](const View& rows) { return static_cast<int>(prepared.args.heads / rows.size(-2)); };
    return {.call = prepared.args,
            .io = sequences.io,
            .query_d = sequences.query.stride(-1),
            .key_d = sequences.key.stride(-1),
            .value_d = sequences.value.stride(-1),
            .output_d = prepared.output.stride(-1),
            .heads_per_query = heads_per(sequences.query),
            .heads_per_value = heads_per(sequences.value)};
}

}  // namespace

void run_by_token(const Prepared& prepared, const char* function) {
    const Sequences& sequences = prepared.sequences;
    const GdnCall& args = prepared.args;
    const DeviceScope scope(sequences.query.device_index);
    const Target target = target_of(function, sequences.query);
    if (target.is_explained()) [[unlikely]]
        remark(explain_by_token(prepared));
    if (!(sequences.plain() && prepared.plain_states)) return RecurrentAny::run(recurrent_any_args(prepared), target);
    if (is_decode(prepared)) {
        const DecodeProblem problem{.sequences = sequences.count,
                                    .heads = args.heads,
                                    .dk = args.dk,
                                    .dv = args.dv,
                                    .io = sequences.io,
                                    .state = prepared.state_type,
                                    .fused_gates = args.forms.fused(),
                                    .channel_gates = has_channel_gates(args)};
        const DecodeArgs step = decode_args(args);
        if (const auto config = decode_codes_config(problem, step, jit::device_traits(target.ordinal).multiprocessors,
                                                    static_cast<WantedSwitch>(kDecodeCodesVariable.value())))
            return DecodeCodes::run(*config, problem, step, target);
        return Decode::run(problem, step, target);
    }
    auto verify = problem_of<VerifyProblem>(prepared, sequences.tokens);
    verify.keeps_states = args.steps.data != nullptr;
    verify.channel_gates = has_channel_gates(args);
    if (is_regular(prepared) && args.tokens > 0 && args.tokens <= kMostVerifyTokens && args.parents.data == nullptr)
        return Verify::run(verify, args, target);
    auto problem = problem_of<RecurrentProblem>(prepared, sequences.mean_tokens());
    problem.aligned = prepared.aligned;
    problem.channel_gates = has_channel_gates(args);
    Recurrent::run(problem, args, target);
}

}  // namespace gdn_cuda::gdn
