// cauchy_kernel, cauchy_conj and their gradients.
#include <torch/csrc/stable/library.h>

#include <array>

#include "register.hpp"
#include "tensor.hpp"

namespace gdn_cuda::structured {
namespace {

// Leading dimensions that broadcast against each other, and a last one each.
struct Broadcast {
    std::vector<int64_t> leading;

    void add(const Checks& check, const char* argument, const View& view, const char* first) {
        const auto size_at = [&](int64_t d) { return d < 0 ? 1 : view.size(static_cast<int>(d)); };
        const auto rank = static_cast<int64_t>(leading.size()), more = view.rank - 1 - rank;
        if (more > 0) leading.insert(leading.begin(), more, 1);
        for (int64_t d = 0; d < static_cast<int64_t>(leading.size()); ++d) {
            const int64_t size = size_at(view.rank - 1 - static_cast<int64_t>(leading.size()) + d);
            GDN_REQUIRE(check, size == leading[d] || size == 1 || leading[d] == 1, argument,
                        fmt::format("leading dimensions that broadcast with those of {}", first), shape_text(view));
            if (size != 1) leading[d] = size;
        }
    }
};

struct PreparedCauchy {
    View v, points, poles;
    DType type;
    Broadcast shape;
};

PreparedCauchy prepare_cauchy(const Tensor& v, const Tensor& points, const Tensor& poles, bool conj) {
    const Checks check{conj ? "cauchy_conj" : "cauchy_kernel"};
    const char *const points_name = conj ? "z" : "omega", *const poles_name = conj ? "w" : "lambd";
    PreparedCauchy prepared{View(v), View(points), View(poles), DType::f32, {}};
    const std::array<std::pair<const char*, const View*>, 3> all{
        {{"v", &prepared.v}, {points_name, &prepared.points}, {poles_name, &prepared.poles}}};
    prepared.type =
        conj ? check.dtype("v", prepared.v, {DType::c64, DType::c128})
             : check.dtype("v", prepared.v, {DType::f32, DType::f64, DType::bf16, DType::f16, DType::c64, DType::c128});
    for (const auto& [name, view] : all) {
        GDN_REQUIRE(check, view->rank >= 1, name, "rank 1 or more", shape_text(*view));
        check.dtype(name, *view, {prepared.type});
        check.device(name, *view, prepared.v, "v");
        prepared.shape.add(check, name, *view, "v");
    }
    GDN_REQUIRE(check, prepared.poles.size(-1) == prepared.v.size(-1), poles_name,
                fmt::format("(…, {}) as v has", prepared.v.size(-1)), shape_text(prepared.poles));
    return prepared;
}

PreparedCauchy prepare_cauchy_backward(const Tensor& grad, const Tensor& v, const Tensor& points, const Tensor& poles,
                                       bool conj, bool /*of_v*/, bool /*of_points*/, bool /*of_poles*/) {
    PreparedCauchy prepared = prepare_cauchy(v, points, poles, conj);
    const Checks check{conj ? "cauchy_conj" : "cauchy_kernel"};
    const View given(grad);
    check.dtype("grad", given, {prepared.type});
    check.device("grad", given, prepared.v, "v");
    std::vector<int64_t> expected = prepared.shape.leading;
    expected.push_back(prepared.points.size(-1));
    GDN_REQUIRE(check, std::ranges::equal(std::span(given.sizes, static_cast<size_t>(given.rank)), expected), "grad",
                "the shape of the result", shape_text(given));
    return prepared;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define_checked(m, "cauchy", "Tensor v, Tensor points, Tensor poles, bool conj", "Tensor");
    define_checked(m, "cauchy_backward",
                   "Tensor grad, Tensor v, Tensor points, Tensor poles, bool conj, bool of_v, bool of_points, bool of_poles",
                   "(Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl("validate_cauchy", TORCH_BOX(&OnlyCheck<prepare_cauchy>::run));
    m.impl("validate_cauchy_backward", TORCH_BOX(&OnlyCheck<prepare_cauchy_backward>::run));
}

}  // namespace gdn_cuda::structured
