#include "prepared.hpp"

#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <limits>

namespace gdn_cuda::gdn {

Prepared prepare(const Checks& check, const Sequences& sequences, const Tensor& out, std::optional<double> scale,
                 bool qk_norm) {
    Prepared prepared{.sequences = sequences, .output = View(out)};
    RecurrentArgs& args = prepared.args;
    const View& output = prepared.output;
    GDN_REQUIRE(
        check,
        output.rank == sequences.value.rank && std::equal(output.sizes, output.sizes + output.rank, sequences.value.sizes),
        "out", fmt::format("the shape of value {}", shape_text(sequences.value)), shape_text(output));
    check.dtype("out", output, {sequences.io});
    check.device("out", output, sequences.query, "query");
    check.last_contiguous("out", output);
    check.distinct("out", output);
    GDN_REQUIRE(check, !scale || std::isfinite(*scale), "scale", "a finite number", fmt::format("{}", scale.value_or(0)));

    args.query = rows_of(sequences.query);
    args.key = rows_of(sequences.key);
    args.value = rows_of(sequences.value);
    args.output = rows_of(output);
    args.sequences = static_cast<int>(sequences.count);
    args.tokens = static_cast<int>(sequences.tokens);
    args.heads = static_cast<int>(sequences.value_heads);
    args.heads_per_key = static_cast<int>(sequences.value_heads / sequences.key_heads);
    args.dk = static_cast<int>(sequences.dk);
    args.dv = static_cast<int>(sequences.dv);
    args.scale = static_cast<float>(scale.value_or(1.0 / std::sqrt(static_cast<double>(sequences.dk))));
    args.qk_norm = qk_norm;
    args.cu_seqlens = tagged(sequences.cu_seqlens);
    args.null_slot = -1;
    args.slot_steps = 1;
    args.slot_count = std::numeric_limits<int>::max();
    args.step_interval = 1;
    args.step_limit = std::numeric_limits<int>::max();
    prepared.aligned = sequences.query.aligned16() && sequences.key.aligned16();
    return prepared;
}

RecurrentStates check_states(const Checks& check, Prepared& prepared, const char* argument, const View& states, int rank) {
    const Sequences& sequences = prepared.sequences;
    check.rank(argument, states, rank, rank == 4 ? "(slots, Hv, dv, dk)" : "(slots, steps, Hv, dv, dk)");
    const int64_t expected[] = {sequences.value_heads, sequences.dv, sequences.dk};
    GDN_REQUIRE(check, std::equal(expected, expected + 3, states.sizes + rank - 3), argument,
                fmt::format("states of (Hv, dv, dk) = {}", shape_text({expected[0], expected[1], expected[2]})),
                shape_text(states));
    check.device(argument, states, sequences.query, "query");
    GDN_REQUIRE(check, states.contiguous_tail(3), argument, "contiguous states", stride_text(states));
    prepared.aligned = prepared.aligned && states.aligned16();
    return {states.data, states.stride(0), rank == 5 ? states.stride(1) : 0};
}

Tensor new_states(const Tensor& like, std::initializer_list<int64_t> leading, const Sequences& sequences, DType type) {
    std::vector<int64_t> shape(leading);
    shape.insert(shape.end(), {sequences.value_heads, sequences.dv, sequences.dk});
    return torch::stable::new_empty(
        like, shape, type == DType::bf16 ? torch::headeronly::ScalarType::BFloat16 : torch::headeronly::ScalarType::Float);
}

}  // namespace gdn_cuda::gdn
