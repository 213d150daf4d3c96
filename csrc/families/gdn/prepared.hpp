// The part common to fused_decode, recurrent_forward and chunked_forward: a checked call, described for the kernels.
#pragma once

#include <gdn_cuda/gdn.hpp>
#include <gdn_cuda/kernels/gdn/recurrent/plan.cuh>
#include <initializer_list>
#include <vector>

#include "../../operators/new_tensor.hpp"
#include "../common/state_scales.hpp"
#include "checks.hpp"
#include "gate_checks.hpp"

namespace gdn_cuda::gdn {

// gdn/recurrent_any can run every call, and its arguments are those of gdn/recurrent and some strides: so these describe a
// call, and other kernels derive theirs from them.
struct Prepared {
    Sequences sequences;
    View output{};
    DType state_type = DType::f32;
    bool aligned = true,
         aligned_states = true;  // whether rows of queries, keys and states start on 16 bytes; whether those of states do
    bool plain_states = true;    // all have one dtype that every kernel takes, and each state is contiguous
    GdnCall args{};
};
// What becomes the gates of a call.
struct GateTensors {
    View beta, gate, A_log, dt_bias;
    const char *beta_name = "beta", *gate_name = "gate";
};

// Output sizes: value's, but with query's head count if query has more heads.
std::vector<int64_t> output_sizes(const Tensor& query, const Tensor& value);
// `arguments` with a new `out`.
template <class Op>
Op with_new_output(Op arguments) {
    arguments.out.emplace(new_tensor(arguments.value, output_sizes(arguments.query, arguments.value)));
    return arguments;
}

Prepared prepare(const Checks& check, const Sequences& sequences, const Tensor& out, std::optional<double> scale, bool qk_norm);
// dk^-0.5 where there is none.
float scale_of(const Checks& check, std::optional<double> scale, const Sequences& sequences);
// A call without outputs.
Prepared prepare_states(const Sequences& sequences, bool qk_norm);
// A_log makes `gate` raw, and so does a bound: only operators that take a gate for every channel have one.
GateTensors check_gates(const Checks& check, Prepared& prepared, const OptionalTensor& beta, const OptionalTensor& gate,
                        const GateOptions& options);
GateTensors check_gates(const Checks& check, Prepared& prepared, const OptionalTensor& beta, const OptionalTensor& gate,
                        const GateOptions& options, const GateBound& bound);
GateTensors check_raw_gates(const Checks& check, Prepared& prepared, const Tensor& a, const Tensor& b, const DecodeGates& gates,
                            const GateBound& bound);
// What the call writes shares no byte with what it reads: rows, gates, offsets, and `read`.
void check_apart(const Checks& check, const Sequences& sequences, const GateTensors& gates,
                 std::initializer_list<Memory> written, std::initializer_list<Memory> read = {});
// States (slots, Hv, dv, dk) or (slots, steps, Hv, dv, dk) of any strides.
RecurrentStates check_states(const Checks& check, Prepared& prepared, const char* argument, const View& states, int rank,
                             std::initializer_list<DType> allowed = {DType::f32, DType::bf16, DType::f16});
// The same for the first states of a call, whose dtype becomes that of its new ones.
RecurrentStates check_initial(const Checks& check, Prepared& prepared, const char* argument, const View& states, int rank,
                              std::initializer_list<DType> allowed = {DType::f32, DType::bf16, DType::f16});
// The same where states may be int8, which have scales.
RecurrentStates check_coded_initial(const Checks& check, Prepared& prepared, const char* argument, const View& states,
                                    const char* scales_argument, const View& scales, int rank = 4);
// Beside states that were checked: their scales, if they have any.
void check_scales(const Checks& check, const Prepared& prepared, RecurrentStates& states, const char* argument,
                  const View& states_view, const char* scales_argument, const View& scales);
// A state for each sequence, to be written.
RecurrentStates check_final_state(const Checks& check, Prepared& prepared, const View& final_state,
                                  std::initializer_list<DType> allowed = {DType::f32, DType::bf16, DType::f16});
// After the slots to read; `to_pool`: the call writes a last state.
void check_write_indices(const Checks& check, Prepared& prepared, const View& write_indices, const SlotTensors& slots,
                         bool to_pool);
void check_has_initial(const Checks& check, Prepared& prepared, const View& has_initial_state);
// Describes new, contiguous states (slots, Hv, dv, dk) or (slots, steps, Hv, dv, dk).
RecurrentStates contiguous_states(void* data, const Sequences& sequences, DType type, int64_t steps = 1);
Tensor new_states(const Tensor& like, std::initializer_list<int64_t> leading, const Sequences& sequences, DType type);

// Outputs of tokens after the last sequence are 0, which the last sequence's blocks see to; here, where there is none.
void clear_without_sequences(const Sequences& sequences, const Tensor& out);

Tensor as_dtype(const Tensor& states, DType type);  // itself, where it is of that dtype

// What the choices of all kernels depend on; the other members are the caller's. `tokens`: as Problem says.
template <class Problem>
Problem problem_of(const Prepared& prepared, int64_t tokens) {
    Problem problem{};
    problem.sequences = prepared.sequences.count;
    problem.tokens = tokens;
    problem.heads = prepared.args.heads;
    problem.dk = prepared.args.dk;
    problem.dv = prepared.args.dv;
    problem.io = prepared.sequences.io;
    problem.state = prepared.state_type;
    return problem;
}

// Launches gdn/decode, gdn/verify, gdn/recurrent or gdn/recurrent_any.
void run_by_token(const Prepared& prepared, const char* function);

}  // namespace gdn_cuda::gdn
