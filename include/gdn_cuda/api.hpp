// gdn_cuda for C++ programs. The functions of the Python package under the same names; gdn_cuda/ops says what each computes
// and takes. Tensors are torch's stable-ABI tensors, so one libgdn_cuda.so serves every torch from 2.10 on; from an
// at::Tensor:
//
//     torch::stable::Tensor(torch::aot_inductor::new_tensor_handle(at::Tensor(x)))
//
// CUDA tensors run on torch's current stream; libtorch_cuda.so must be loaded (link it, or dlopen it as examples/layer.cpp
// does). CPU tensors run the reference, which is Python: they need `import gdn_cuda` in this process. Wrong input throws
// std::invalid_argument (`function: argument: expected X, got Y`); a toolchain or cache problem, std::runtime_error.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

// torch's stable types are hidden, so structs that hold them are.
#define GDN_HOLDS_TENSORS __attribute__((visibility("hidden")))
// Functions that take them would be too.
#pragma GCC visibility push(default)

namespace gdn_cuda {

using Tensor = torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Optional: where the kernel headers are (the folder holding gdn_cuda/kernels) and the CUDA toolkit. Empty: found through the
// environment (GDN_CUDA_HOME) and /usr/local/cuda; a C++ program has no wheels to search.
void init(const std::filesystem::path& library_root = {}, const std::filesystem::path& cuda_home = {});

// Loads every configuration of a kernel ("gdn/recurrent"; empty: all kernels) for a device, compiling what is missing, so that
// graph capture never meets a cold kernel. Returns how many.
int warmup(const std::string& kernel = {}, int device = 0);

enum class InferenceMode : int64_t { prefill = 0, decode = 1, spec_verify = 2 };

std::tuple<Tensor, Tensor> fused_gdn_gating(const Tensor& A_log, const Tensor& dt_bias, const Tensor& a, const Tensor& b);

struct GDN_HOLDS_TENSORS RecurrentOptions {
    OptionalTensor state, cu_seqlens, num_accepted_tokens;
    InferenceMode inference_mode = InferenceMode::prefill;
    bool is_qk_norm = false;
    std::optional<double> scale;
    OptionalTensor out;
};
std::tuple<Tensor, Tensor> recurrent_forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta,
                                             const Tensor& gate, const RecurrentOptions& options = {});

struct GDN_HOLDS_TENSORS DecodeOptions {
    OptionalTensor state_indices, cu_seqlens, num_accepted_tokens;
    std::optional<int64_t> null_slot;
    OptionalTensor step_states, step_slots;
    std::optional<double> scale;
    bool use_qk_l2norm = true;
    OptionalTensor out;
};
Tensor fused_decode(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& a, const Tensor& b,
                    const Tensor& A_log, const Tensor& dt_bias, const Tensor& state_pool, const DecodeOptions& options = {});

struct GDN_HOLDS_TENSORS ChunkedOptions {
    OptionalTensor state, cu_seqlens, chunk_indices, cu_chunks;
    std::optional<double> scale;
    bool use_qk_l2norm = false;
    bool output_final_state = true;
    std::optional<torch::headeronly::ScalarType> state_dtype;
    OptionalTensor state_indices;  // `state` is a pool, updated in place
    int64_t checkpoint_every = 0;
    bool deterministic = false;  // no sequence is split into segments: docs/numerics.md
    OptionalTensor out;
};
struct GDN_HOLDS_TENSORS ChunkedResult {
    Tensor output;
    OptionalTensor final_state;  // the pool with state_indices; none with output_final_state = false
    OptionalTensor checkpoints;  // with checkpoint_every
};
ChunkedResult chunked_forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta,
                              const Tensor& gate, const ChunkedOptions& options = {});

Tensor transpose_to_mn_major(const Tensor& input, int64_t alignment = 16);

void chunk_local_cumsum_bf16(const Tensor& input, const Tensor& output, int64_t batch_size, int64_t seq_len, int64_t num_heads,
                             bool head_first = false, const OptionalTensor& cu_seqlens = {},
                             const OptionalTensor& chunk_indices = {});

void bf16_gdn_compute_u_w(const Tensor& k, const Tensor& v, const Tensor& u, const Tensor& w, const Tensor& beta,
                          const OptionalTensor& gate = {}, const std::string& compiled_dims = "t",
                          const OptionalTensor& cu_seqlens = {}, const OptionalTensor& chunk_indices = {});

void bf16_chunked_seq_state_update(const Tensor& k, const Tensor& u, const Tensor& w, const Tensor& state,
                                   const Tensor& final_state, const OptionalTensor& gate = {}, bool is_initial_state = false,
                                   bool output_final_state = true, const std::string& compiled_dims = "t",
                                   const OptionalTensor& cu_seqlens = {}, int64_t chunk_size = 64);

void bf16_gdn_chunked_compute_O(const Tensor& q, const Tensor& state, const Tensor& k, const Tensor& u, const Tensor& o,
                                const OptionalTensor& gate = {}, const std::string& compiled_dims = "t",
                                const OptionalTensor& cu_seqlens = {}, const OptionalTensor& chunk_indices = {},
                                const OptionalTensor& cu_chunks = {}, int64_t chunk_size = 64);

// ---- Structured matrices: gdn_cuda/ops/structured.py has the formulas, docs/structured.md what meets at the edges. Leading
// dimensions broadcast. All tensors of a call have one dtype: nothing is converted here. `out` is contiguous, of the result's
// shape and dtype, and apart from the inputs. Gradients are Python's.

// (…,L): Σ_n v_n / (ω_l − λ_n); float32, float64, bfloat16, float16, complex64 or complex128.
Tensor cauchy_kernel(const Tensor& v, const Tensor& omega, const Tensor& lambd, const OptionalTensor& out = {});
// (…,L): the same with every v_n, w_n and its conjugate; complex64 or complex128, as the two below.
Tensor cauchy_conj(const Tensor& v, const Tensor& z, const Tensor& w, const OptionalTensor& out = {});
// (…,L) real: 2 Re Σ_n v_n e^{x_n l}.
Tensor log_vandermonde(const Tensor& v, const Tensor& x, int64_t L, const OptionalTensor& out = {});
// (…,N): v_n Σ_l u_l e^{x_n l}; u (…,L) is real.
Tensor log_vandermonde_transpose(const Tensor& u, const Tensor& v, const Tensor& x);

// ω and λ in the L2 persistence window of the current stream until release(), or until this handle ends: call cauchy_kernel
// with its tensors, which are the given ones or, where those lie far apart, copies side by side. CUDA tensors of one dtype.
// Throws where the device cannot set that much of its L2 aside, where the stream has such a window, and under graph capture.
struct GDN_HOLDS_TENSORS CauchyPin {
    Tensor omega, lambd;
    std::unique_ptr<void, void (*)(void*)> window;
    void release() { window.reset(); }
};
CauchyPin cauchy_pin_l2(const Tensor& omega, const Tensor& lambd);

// ---- Toeplitz matrices: c is the first column, r the first row, c[0] wins. A right-hand side with more dimensions than c and
// r is (…,n,k), any other (…,n). float32, float64, complex64 or complex128, any number of rows: what Python does on CUDA is
// this.

// T x, Tᵀ x: c (…,n), r (…,m), x (…,m), or (…,n) for Tᵀ. For n != m zeros complete c, r and x on CUDA up to the rows of one
// block.
Tensor toeplitz_matvec(const Tensor& c, const Tensor& r, const Tensor& x, const OptionalTensor& out = {});
Tensor toeplitz_matvec_transpose(const Tensor& c, const Tensor& r, const Tensor& x, const OptionalTensor& out = {});
// (T⁻¹ b, info) with pivots, in fp64. Nothing waits. info is int32, one for every matrix: 0; k, 1 ≤ k ≤ n: pivot k is zero, the
// solution NaN; n + 1: T is singular to working precision.
std::tuple<Tensor, Tensor> toeplitz_solve_ex(const Tensor& c, const Tensor& r, const Tensor& b);
// The same for r = c; with assume_positive (real; CUDA: at most 8192 rows) several times as fast for positive definite T, and
// info −k, the solution NaN, where the leading minor of order k is not positive; on CUDA beyond 4096 rows −1,
// where conjugate gradients did not come to an end.
std::tuple<Tensor, Tensor> toeplitz_solve_symmetric_ex(const Tensor& c, const Tensor& b, bool assume_positive = false);
// T⁻¹ b; these wait to look at info, and throw std::runtime_error where it is not 0. Symmetric ones try the ways for positive
// definite matrices first.
Tensor toeplitz_solve(const Tensor& c, const Tensor& r, const Tensor& b);
Tensor toeplitz_solve_symmetric(const Tensor& c, const Tensor& b);
// First and last column of T⁻¹, (…,n) each; waits and throws as those.
std::tuple<Tensor, Tensor> gs_compute_generators(const Tensor& c, const Tensor& r);
// T⁻¹ x from them; NaN on CUDA where u[0] is zero to working precision.
Tensor toeplitz_inverse_apply(const Tensor& gs_u, const Tensor& gs_v, const Tensor& x);

}  // namespace gdn_cuda

#pragma GCC visibility pop
