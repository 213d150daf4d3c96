// Parts of all structured operators: broadcasting of leading dimensions, operands for kernels, and checks of output tensors.
#pragma once

#include <gdn_cuda/kernels/structured/broadcast_operand.cuh>
#include <limits>
#include <span>
#include <vector>

#include "../../operators/tensor.hpp"

namespace gdn_cuda::structured {

// Broadcasts operands' leading dimensions: all dimensions but the last.
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

inline BroadcastOperand operand(const View& view) {
    return {.data = view.data, .step = view.stride(-1)};
}

// Sets sizes and strides of leading dimensions. Adjacent dimensions that are contiguous in every operand are merged.
template <class Args>
void set_leading(const Checks& check, const char* first_name, const std::vector<int64_t>& leading,
                 std::initializer_list<std::pair<const View*, BroadcastOperand*>> operands, Args& args) {
    args.rows = 1;
    for (size_t d = 0; d < leading.size(); ++d) {
        const int64_t size = leading[d];
        args.rows *= size;
        if (size == 1) continue;
        const auto stride = [&](const View& view) {
            const int dim = view.rank - 1 - static_cast<int>(leading.size() - d);
            return dim < 0 ? 0 : view.stride(dim);
        };
        const bool merges = args.leading > 0 && std::ranges::all_of(operands, [&](const auto& each) {
                                return each.second->stride[args.leading - 1] == stride(*each.first) * size;
                            });
        if (!merges) {
            GDN_REQUIRE(check, args.leading < BroadcastOperand::kMaxLeading, first_name,
                        fmt::format("at most {} leading dimensions after those that are contiguous in every input are merged",
                                    BroadcastOperand::kMaxLeading),
                        shape_text(*operands.begin()->first));
            args.size[args.leading++] = 1;
        }
        args.size[args.leading - 1] *= size;
        for (const auto& [view, into] : operands) into->stride[args.leading - 1] = stride(*view);
    }
    GDN_REQUIRE(check, args.rows <= std::numeric_limits<int>::max(), first_name, "fewer than 2^31 rows",
                shape_text(*operands.begin()->first));
}

// Checks a caller's output tensor: contiguous, with the result's shape, without overlap with the inputs.
struct CheckedOutput {
    const Checks& check;
    View out;

    CheckedOutput(const Checks& check, const Tensor& tensor, std::span<const int64_t> shape, DType type, const View& like,
                  const char* like_name = "v")
        : check(check), out(tensor) {
        check.dtype("out", out, {type});
        check.device("out", out, like, like_name);
        GDN_REQUIRE(check, std::ranges::equal(std::span(out.sizes, static_cast<size_t>(out.rank)), shape), "out",
                    fmt::format("the shape of the result, ({})", fmt::join(shape, ", ")), shape_text(out));
        GDN_REQUIRE(check, out.contiguous_tail(out.rank), "out", "a contiguous tensor", stride_text(out));
    }
    const CheckedOutput& apart_from(const char* argument, const View& read) const {
        check.apart({{"out", out}}, {{argument, read}});
        return *this;
    }
};

}  // namespace gdn_cuda::structured
