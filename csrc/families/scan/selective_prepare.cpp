// Checks the arguments of selective_scan and of its backward.
#include "selective_prepare.hpp"

#include <algorithm>

#include "../../operators/packed.hpp"

namespace gdn_cuda::scan {
namespace {

struct Sizes {
    int64_t batch, dim, length, state_size;
};

// The dtypes of a call.
struct Types {
    DType io, wide;  // io: of u; wide: of A, or of the parts of a complex A
    bool is_complex;

    DType state_type() const { return !is_complex ? wide : wide == DType::f64 ? DType::c128 : DType::c64; }
};

DType real_of(DType type) {
    return type == DType::c64 ? DType::f32 : type == DType::c128 ? DType::f64 : type;
}

DType check_io_or_wide(const Checks& check, const char* argument, const View& view, const Types& types) {
    if (types.is_complex) {
        if (types.io == types.wide) return check.dtype(argument, view, {types.state_type(), types.wide});
        return check.dtype(argument, view, {types.state_type(), types.io, types.wide});
    }
    if (types.io == types.wide) return check.dtype(argument, view, {types.wide});
    return check.dtype(argument, view, {types.io, types.wide});
}

// A constant tensor (D, N): one group per channel.
Coefficients constant(const View& view, DType type) {
    const int64_t reals = is_complex(type) ? 2 : 1;
    return {.data = view.data,
            .type = real_of(type),
            .groups = static_cast<int>(view.size(0)),
            .group = view.stride(0) * reals,
            .n = view.stride(1) * reals,
            .pair = is_complex(type)};
}

// B or C, constant or varying.
Coefficients check_coefficients(const Checks& check, const char* argument, const View& view, const Sizes& sizes,
                                const Types& types, const View& u) {
    check.device(argument, view, u, "u");
    if (view.rank == 2) {
        check.shape(argument, view, {sizes.dim, sizes.state_size}, "(D, N)");
        return constant(view, check.dtype(argument, view, {types.state_type()}));
    }
    GDN_REQUIRE(check, view.rank == 3 || view.rank == 4, argument, "(D, N), (B, N, L) or (B, G, N, L)", shape_text(view));
    const DType type = check_io_or_wide(check, argument, view, types);
    const bool in_pairs = types.is_complex && !is_complex(type), grouped = view.rank == 4;
    const int64_t groups = grouped ? view.size(1) : 1, last = in_pairs ? 2 * sizes.length : sizes.length;
    const bool fits = view.size(0) == sizes.batch && view.size(-2) == sizes.state_size && view.size(-1) == last;
    if (!fits)
        check.fail(argument,
                   fmt::format("(B={}, {}N={}, {}={}){}", sizes.batch, grouped ? "G, " : "", sizes.state_size,
                               in_pairs ? "2L" : "L", last, in_pairs ? " of (real, imaginary) pairs, as A is complex" : ""),
                   shape_text(view));
    GDN_REQUIRE(check, groups >= 1 && sizes.dim % groups == 0, argument,
                fmt::format("a number of groups that divides the {} channels", sizes.dim), fmt::format("{}", groups));
    const int64_t reals = is_complex(type) ? 2 : 1, step = in_pairs && last > 0 ? view.strides[view.rank - 1] : 1;
    return {.data = view.data,
            .type = real_of(type),
            .varies = true,
            .groups = check.count(argument, "groups", groups),
            .batch = view.stride(0) * reals,
            .group = grouped ? view.stride(1) * reals : 0,
            .n = view.stride(-2) * reals,
            .token = in_pairs ? 2 * step : view.stride(-1) * reals,
            .pair = types.is_complex ? step : 0};
}

const float* check_per_channel(const Checks& check, const char* argument, const View& view, const Sizes& sizes,
                               const Types& types, const View& u) {
    if (!view.defined()) return nullptr;
    check.shape(argument, view, {sizes.dim}, "(D,)");
    check.dtype(argument, view, {types.wide});
    check.device(argument, view, u, "u");
    return static_cast<const float*>(view.data);
}

}  // namespace

PreparedSelective prepare_selective(const Checks& check, const SelectiveScan& x) {
    const View u(x.u), delta(x.delta), A(x.A), B(x.B), C(x.C),
        D = view_of(x.D), z = view_of(x.z), delta_bias = view_of(x.delta_bias), delta_a = view_of(x.delta_a),
        initial_state = view_of(x.initial_state), cu_seqlens = view_of(x.cu_seqlens);
    PreparedSelective prepared{.inputs = {}, .u = u, .delta = delta, .z = z, .delta_a = delta_a};
    SelectiveInputs& inputs = prepared.inputs;

    check.rank("u", u, 3, "(B, D, L)");
    const DType io = check.dtype("u", u, {DType::f32, DType::bf16, DType::f16, DType::f64});
    const auto rows = [&](const char* argument, const View& view) {
        if (!view.defined()) return ChannelRows{};
        GDN_REQUIRE(check, view.rank == 3 && std::equal(view.sizes, view.sizes + 3, u.sizes), argument,
                    fmt::format("the shape of u {}", shape_text(u)), shape_text(view));
        check.dtype(argument, view, {io});
        check.device(argument, view, u, "u");
        return channel_rows(view);
    };
    inputs.u = rows("u", u);
    inputs.delta = rows("delta", delta);
    inputs.z = rows("z", z);
    inputs.delta_a = rows("delta_a", delta_a);

    const int64_t batch = u.size(0), dim = u.size(1), length = u.size(2);
    inputs.batch = check.count("u", "sequences", batch);
    inputs.dim = check.count("u", "channels", dim);
    inputs.length = check.count("u", "tokens", length, kMaxTokens);

    const DType wide = io == DType::f64 ? DType::f64 : DType::f32;
    check.rank("A", A, 2, "(D, N)");
    const Types types{.io = io,
                      .wide = wide,
                      .is_complex = is_complex(wide == DType::f64 ? check.dtype("A", A, {DType::f64, DType::c128})
                                                                  : check.dtype("A", A, {DType::f32, DType::c64}))};
    const int64_t state_size = A.size(1);
    GDN_REQUIRE(check, A.size(0) == dim && state_size >= 1 && state_size <= kMaxStates, "A",
                fmt::format("(D={}, N), N from 1 to {}", dim, kMaxStates), shape_text(A));
    check.device("A", A, u, "u");
    const bool is_real = x.discretization == Discretization::s7 || x.discretization == Discretization::rglru;
    const char* const discretization = kDiscretizationNames[static_cast<int>(x.discretization)];
    if (types.is_complex && is_real)
        check.fail("A", fmt::format("real numbers, as '{}' is real", discretization), dtype_name(A));
    GDN_REQUIRE(check, !(delta_a.defined() && is_real), "delta_a", fmt::format("None with '{}'", discretization), "a tensor");
    inputs.state_size = static_cast<int>(state_size);
    inputs.A = constant(A, types.state_type());
    const Sizes sizes{batch, dim, length, state_size};
    inputs.B = check_coefficients(check, "B", B, sizes, types, u);
    inputs.C = check_coefficients(check, "C", C, sizes, types, u);
    inputs.D = check_per_channel(check, "D", D, sizes, types, u);
    inputs.delta_bias = check_per_channel(check, "delta_bias", delta_bias, sizes, types, u);

    int64_t sequences = batch;
    if (cu_seqlens.defined()) {
        GDN_REQUIRE(check, batch == 1, "u", "a batch of 1, as cu_seqlens packs sequences along L", shape_text(u));
        check_cu_seqlens(check, cu_seqlens, length, u, "u");
        sequences = cu_seqlens.size(0) - 1;
        inputs.cu_seqlens = tagged(cu_seqlens);
    }
    inputs.sequences = check.count(cu_seqlens.defined() ? "cu_seqlens" : "u", "sequences", sequences);
    if (initial_state.defined()) {
        check.shape("initial_state", initial_state, {sequences, dim, state_size},
                    cu_seqlens.defined() ? "(sequences, D, N)" : "(B, D, N)");
        check.dtype("initial_state", initial_state, {types.state_type()});
        check.device("initial_state", initial_state, u, "u");
        inputs.initial_state = initial_state.data;
    }
    inputs.delta_softplus = x.delta_softplus;

    prepared.io = io;
    prepared.layout = layout_of_most({&u, &delta, &z, &delta_a});
    prepared.discretization = x.discretization;
    prepared.is_complex = types.is_complex;
    const auto dense = [](const View& view) { return !view.defined() || view.contiguous_tail(view.rank); };
    prepared.can_read_others = dense(D) && dense(delta_bias) && dense(initial_state) &&
                               kernels_can_read(inputs.B, inputs.state_size, inputs.length) &&
                               kernels_can_read(inputs.C, inputs.state_size, inputs.length);
    check.count("u", "chunks of the sequence", prepared.chunks());
    // Torch must be able to count the bytes of all chunks' states.
    const auto states = static_cast<double>(prepared.chunks() + sequences) * static_cast<double>(dim * state_size);
    GDN_REQUIRE(check, states < 0x1p58, "u", "sizes of fewer than 2^58 states", shape_text(u));
    return prepared;
}

}  // namespace gdn_cuda::scan
