// Checks of the three Hyena operators, which also fill their kernels' arguments.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/hyena/plan.cuh>
#include <tuple>
#include <vector>

#include "../../operators/layout.hpp"
#include "../../operators/packed.hpp"
#include "../../operators/tensor.hpp"

namespace gdn_cuda::conv {

// Tiles and steps that reach past the last token end below 2^31.
inline constexpr int64_t kHyenaMostTokens = (int64_t{1} << 31) - 4096;

HyenaTensor hyena_tensor(const View& x);
// Whether innermost elements are contiguous and rows are aligned to 16 bytes.
bool has_vectors(const View& x, Layout layout);

struct HyenaGiven {
    View x1, x2, v;
    DType io, wide;  // dtype of the tensors, and the other dtype that filters and states may have
    Layout layout;

    // Fills the members that all three kernels' arguments have.
    void fill(auto& args) const {
        args.x1 = hyena_tensor(x1);
        args.x2 = hyena_tensor(x2);
        args.v = hyena_tensor(v);
        args.batches = static_cast<int>(x1.size(0));
        args.channels = static_cast<int>(x1.size(1));
        args.tokens = static_cast<int>(x1.size(2));
    }
    void fill_output(auto& args, const Tensor& y) const {
        const View view(y);
        args.y = hyena_tensor(view);
        args.vectors = true;
        for (const View* each : {&x1, &x2, &v, &view}) args.vectors &= has_vectors(*each, layout);
    }
    // New tensors: y in the layout of x1, and the final state, with `length` values for a channel.
    std::tuple<Tensor, Tensor> new_outputs(auto& args, const Tensor& like, int64_t length) const {
        const Tensor y = empty_rows(like, layout);
        const std::vector<int64_t> state_shape = {x1.size(0), x1.size(1), length};
        const Tensor last = new_tensor(like, state_shape, ScalarType::Float);
        fill_output(args, y);
        args.last = static_cast<float*>(memory_of(last));
        return {y, last};
    }
};

// Checks x1, x2 and v.
HyenaGiven check_hyena(const Checks& check, const Tensor& x1, const Tensor& x2, const Tensor& v);
// Channels per group of parameters, from their first dimension.
int check_groups(const Checks& check, const char* argument, const View& parameters, int64_t channels);
// Checks weight (groups, 1, K) and bias (D,).
HyenaFilter check_filter(const Checks& check, const HyenaGiven& given, const View& weight, const View& bias, int most_taps);
// (B, L)
HyenaMask check_mask(const Checks& check, const HyenaGiven& given, const View& mask);
// (B, D, `length`)
HyenaInitial check_initial(const Checks& check, const HyenaGiven& given, const View& initial, int64_t length,
                           const char* layout);

// Checks grad (B, D, L) and grad_state (B, D, `length`). Returns the latter as kernels take it.
HyenaInitial check_gradients(const Checks& check, const HyenaGiven& given, const View& grad, const View& grad_state,
                             int64_t length, const char* layout);
// The arguments of an operator's backward; a derived struct has its name.
template <class Call>
struct HyenaBackwardCall {
    Given grad, grad_state;
    Call forward;

    GDN_FIELDS(grad, grad_state, forward)
};
// An uninitialised gradient of x1, x2 or v in the layout of x1. Sets `to`, and clears `vectors` unless it has_vectors.
Tensor empty_gradient(const HyenaGiven& given, const Tensor& x1, HyenaTensor& to, bool& vectors);

// The backward of hyena_short or hyena_medium, checked: a call of the forward operator, and the gradient of y.
template <class Forward, class Args>
struct PreparedFilterBackward {
    Forward forward;
    View grad;
    Args args{};

    PreparedFilterBackward(const Checks& check, const Forward& prepared, const auto& call)
        : forward(prepared), grad(call.grad) {
        args.grad_state =
            check_gradients(check, forward.given, grad, View(call.grad_state), forward.args.filter.taps - 1, "(B, D, K - 1)");
        args.dy = hyena_tensor(grad);
    }
    // The gradients of x1, x2 and v. Sets forward.args.vectors for all rows that the kernel reads and writes.
    std::array<Tensor, 3> new_gradients(const Tensor& x1) {
        const HyenaGiven& given = forward.given;
        bool& vectors = forward.args.vectors = true;
        for (const View* each : {&given.x1, &given.x2, &given.v, static_cast<const View*>(&grad)})
            vectors = vectors && has_vectors(*each, given.layout);
        return {empty_gradient(given, x1, args.dx1, vectors), empty_gradient(given, x1, args.dx2, vectors),
                empty_gradient(given, x1, args.dv, vectors)};
    }
};

}  // namespace gdn_cuda::conv
