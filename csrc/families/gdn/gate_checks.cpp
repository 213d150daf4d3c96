#include "gate_checks.hpp"

#include <cmath>

namespace gdn_cuda::gdn {
namespace {

// The gate's layouts as errors name them.
std::string layout_of(const Sequences& s, bool channels) {
    const char* tokens = s.unit_batch ? "1, N" : s.packed() ? "N" : "B, T";
    return fmt::format("({}, {}{})", tokens, s.has_more_queries() ? "Hq" : "Hv", channels ? ", dk" : "");
}

Scalars check_channel_gate(const Checks& check, const char* argument, const View& gate, const Sequences& s) {
    const View view = s.without_batch(gate);
    const bool fits =
        s.packed() ? view.same_shape({s.tokens, s.heads, s.dk}) : view.same_shape({s.count, s.tokens, s.heads, s.dk});
    GDN_REQUIRE(check, fits, argument,
                fmt::format("{} = {}", layout_of(s, true),
                            s.unit_batch ? shape_text({1, s.tokens, s.heads, s.dk})
                            : s.packed() ? shape_text({s.tokens, s.heads, s.dk})
                                         : shape_text({s.count, s.tokens, s.heads, s.dk})),
                shape_text(gate));
    dtype_beside(check, argument, view, s.io);
    check.device(argument, view, s.query, s.names.query);
    return channel_scalars(view);
}

ChannelGate form_of(const DecayTensors& x) {
    if (x.lower_bound) return ChannelGate::bounded;
    if (x.A_log.defined()) return ChannelGate::softplus;
    return x.is_linear ? ChannelGate::decay : ChannelGate::log_decay;
}

}  // namespace

Scalars channel_scalars(const View& view) {
    const int lead = view.rank - 3;
    return {tagged(view), lead ? view.stride(0) : 0, view.stride(lead), view.stride(lead + 1)};
}

void check_bound(const Checks& check, const std::optional<double>& lower_bound) {
    GDN_REQUIRE(check, !lower_bound || (*lower_bound < 0 && std::isfinite(static_cast<float>(2 * *lower_bound))), "lower_bound",
                "a finite number below 0, or None", fmt::format("{}", *lower_bound));
}

ChannelBias check_channel_bias(const Checks& check, const View& bias, int64_t heads, int64_t dk, DType io, const View& like,
                               const char* like_name) {
    if (!bias.defined()) return {};
    GDN_REQUIRE(check, bias.same_shape({heads, dk}) || bias.same_shape({heads * dk}), "dt_bias",
                fmt::format("(heads, dk) = {}, or flat ({},)", shape_text({heads, dk}), heads * dk), shape_text(bias));
    dtype_beside(check, "dt_bias", bias, io);
    check.device("dt_bias", bias, like, like_name);
    check.last_contiguous("dt_bias", bias);
    return {tagged(bias), bias.rank == 2 ? bias.stride(0) : dk};
}

int rows_rank(const Sequences& s) {
    return s.value.rank + (s.unit_batch ? 1 : 0);
}

void check_decay(const Checks& check, GdnCall& call, const Sequences& s, const DecayTensors& x, GatePer per) {
    const bool channels = x.gate.defined() && x.gate.rank == rows_rank(s);
    const bool both = per == GatePer::head_or_channel;
    const bool raw = x.A_log.defined() || x.lower_bound;
    const char* made_raw_by = x.A_log.defined() ? "A_log" : "lower_bound";
    GDN_REQUIRE(check, both || !channels, x.name,
                fmt::format("a gate for each head, {}, as this function takes none for every channel", layout_of(s, false)),
                shape_text(x.gate));
    GDN_REQUIRE(check, !both || !x.gate.defined() || channels || x.gate.rank == rows_rank(s) - 1, x.name,
                fmt::format("{}, or {} for a gate of every channel", layout_of(s, false), layout_of(s, true)),
                shape_text(x.gate));
    if (channels) {
        call.gate = check_channel_gate(check, x.name, x.gate, s);
    } else if (x.gate.defined()) {
        call.gate = check_scalars(check, x.name, x.gate, s);
    }
    GDN_REQUIRE(check, x.gate.defined() || !(raw || x.is_linear), x.name,
                fmt::format("a tensor with {}", raw ? made_raw_by : "gate_is_linear=True"), "None");
    GDN_REQUIRE(check, channels || !x.lower_bound, "lower_bound",
                fmt::format("None, as {} is {}, a gate for each head", x.name, layout_of(s, false)),
                fmt::format("{}", *x.lower_bound));
    GDN_REQUIRE(check, !(raw && x.is_linear), "gate_is_linear", fmt::format("False with {}", made_raw_by), "True");
    check_bound(check, x.lower_bound);
    GDN_REQUIRE(check, raw || !x.dt_bias.defined(), "dt_bias",
                channels ? "None without A_log and lower_bound" : "None without A_log", "a tensor");
    if (x.A_log.defined()) call.A_log = check_per_head(check, "A_log", x.A_log, s);
    if (!channels) {
        if (x.dt_bias.defined()) call.dt_bias = check_per_head(check, "dt_bias", x.dt_bias, s);
        call.forms.gate = raw ? GateForms::raw : x.is_linear ? GateForms::decay : GateForms::log_decay;
        return;
    }
    const ChannelBias bias = check_channel_bias(check, x.dt_bias, s.heads, s.dk, s.io, s.query, s.names.query);
    call.dt_bias = bias.values;
    call.channels = {.form = form_of(x),
                     .lower_bound = static_cast<float>(x.lower_bound.value_or(0)),
                     .channel = x.gate.stride(-1),
                     .bias_head = bias.head};
}

}  // namespace gdn_cuda::gdn
