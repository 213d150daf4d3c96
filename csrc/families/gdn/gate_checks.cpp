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
    const int lead = view.rank - 3;
    return {tagged(view), lead ? view.stride(0) : 0, view.stride(lead), view.stride(lead + 1)};
}

Tagged check_channel_bias(const Checks& check, const View& bias, const Sequences& s) {
    GDN_REQUIRE(check, bias.same_shape({s.heads, s.dk}) || bias.same_shape({s.heads * s.dk}), "dt_bias",
                fmt::format("({0}, dk) = {1}, or flat ({2},)", s.has_more_queries() ? "Hq" : "Hv", shape_text({s.heads, s.dk}),
                            s.heads * s.dk),
                shape_text(bias));
    dtype_beside(check, "dt_bias", bias, s.io);
    check.device("dt_bias", bias, s.query, s.names.query);
    check.last_contiguous("dt_bias", bias);
    return tagged(bias);
}

ChannelGate form_of(const DecayTensors& x) {
    if (x.lower_bound) return ChannelGate::bounded;
    if (x.A_log.defined()) return ChannelGate::softplus;
    return x.is_linear ? ChannelGate::decay : ChannelGate::log_decay;
}

}  // namespace

void check_decay(const Checks& check, GdnCall& call, const Sequences& s, const DecayTensors& x, GatePer per) {
    const int channel_rank = s.value.rank + (s.unit_batch ? 1 : 0);
    const bool channels = x.gate.defined() && x.gate.rank == channel_rank;
    const bool both = per == GatePer::head_or_channel;
    const bool raw = x.A_log.defined() || x.lower_bound;
    const char* made_raw_by = x.A_log.defined() ? "A_log" : "lower_bound";
    GDN_REQUIRE(
        check, both || !channels, x.name,
        fmt::format("a gate for each head, {}, as only recurrent_forward takes one for every channel", layout_of(s, false)),
        shape_text(x.gate));
    GDN_REQUIRE(check, !both || !x.gate.defined() || channels || x.gate.rank == channel_rank - 1, x.name,
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
    GDN_REQUIRE(check, !x.lower_bound || (*x.lower_bound < 0 && std::isfinite(static_cast<float>(2 * *x.lower_bound))),
                "lower_bound", "a finite number below 0, or None", fmt::format("{}", *x.lower_bound));
    GDN_REQUIRE(check, raw || !x.dt_bias.defined(), "dt_bias",
                channels ? "None without A_log and lower_bound" : "None without A_log", "a tensor");
    if (x.A_log.defined()) call.A_log = check_per_head(check, "A_log", x.A_log, s);
    if (x.dt_bias.defined())
        call.dt_bias = channels ? check_channel_bias(check, x.dt_bias, s) : check_per_head(check, "dt_bias", x.dt_bias, s);
    if (!channels) {
        call.forms.gate = raw ? GateForms::raw : x.is_linear ? GateForms::decay : GateForms::log_decay;
        return;
    }
    call.channels = {.form = form_of(x),
                     .lower_bound = static_cast<float>(x.lower_bound.value_or(0)),
                     .channel = x.gate.stride(-1),
                     .bias_head = !x.dt_bias.defined()  ? 0
                                  : x.dt_bias.rank == 2 ? x.dt_bias.stride(0)
                                                        : s.dk};
}

}  // namespace gdn_cuda::gdn
