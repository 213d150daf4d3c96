// What operators take: each is a struct of named arguments with defaults, filled by designated initialisers,
//
//     gdn_cuda::fused_decode({.query = q, .key = k, /* … */ .state_pool = pool});
//
// from which the library also derives the operator's schema in torch. Tensors are torch's stable-ABI tensors; from an
// at::Tensor: torch::stable::Tensor(torch::aot_inductor::new_tensor_handle(at::Tensor(x))).
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <gdn_cuda/fields.hpp>
#include <optional>

// torch's stable types are hidden, so structs that hold them are.
#define GDN_HOLDS_TENSORS __attribute__((visibility("hidden")))

namespace gdn_cuda {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// A tensor that has to be given: a call without it is refused by name, and compilers warn of it (-Wmissing-field-initializers),
// as only what may be left out has an initialiser in these structs.
struct GDN_HOLDS_TENSORS Given : OptionalTensor {
    using OptionalTensor::optional;
    operator const Tensor&() const { return **this; }
};
// The same, and the call writes to it.
struct GDN_HOLDS_TENSORS Written : Given {
    using Given::Given;
};
// Written; a call without it allocates it.
struct GDN_HOLDS_TENSORS Output : Written {
    using Written::Written;
};
// Written if it is given.
struct GDN_HOLDS_TENSORS OptionalWritten : OptionalTensor {
    using OptionalTensor::optional;
    OptionalWritten(const OptionalTensor& tensor) : OptionalTensor(tensor) {}
};

}  // namespace gdn_cuda
