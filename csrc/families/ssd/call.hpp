// Checks and arguments that ssd_scan and its gradients share.
#pragma once

#include <vector>

#include "../../jit/tensor_map.hpp"
#include "../../operators/operator.hpp"
#include "prefill.hpp"
#include "prefill_mma.hpp"
#include "steps.hpp"

namespace gdn_cuda::ssd {

struct SsdScanCall {
    static constexpr const char* name = "ssd_scan";
    Given x, dt, A, B, C;
    OptionalTensor D, z, dt_bias, initial_state, cu_seqlens, seq_idx, has_initial_state;
    bool dt_softplus = false;
    double dt_lowest = 0, dt_highest = 0;

    GDN_FIELDS(x, dt, A, B, C, D, z, dt_bias, initial_state, cu_seqlens, seq_idx, has_initial_state, dt_softplus, dt_lowest,
               dt_highest)
};

struct Prepared {
    View x;
    DType io;
    int64_t batch, tokens, heads, channels, groups, states, sequences;
    SsdStepsArgs steps;
    SsdArgs args;

    // Slots of chunks.
    int64_t slots() const {
        return steps.cu_seqlens.data == nullptr ? batch * ceil_div(tokens, kChunk) : tokens / kChunk + sequences;
    }
};

Prepared prepare(const Checks& check, const SsdScanCall& call);

// States (count, H, P, N), a head's contiguous.
SsdStates check_states(const Checks& check, const char* argument, const View& states, const Prepared& prepared, int64_t count);

void require_kernel(const Checks& check, const Prepared& prepared);

// New states, to which the first pass stores.
Tensor new_last_states(Prepared& prepared, const Tensor& like);

// Whether ssd/prefill_mma runs in place of ssd/prefill.
bool uses_mma(const Target& target);

// What a launch reads beside the caller's tensors.
struct Inputs {
    const Prepared& prepared;
    const Target& target;
    std::vector<Tensor> kept{};

    TensorMap map(const Tensor& tensor) const;
    // Maps the tensor if TMA can read it, else a copy.
    TensorMap add(const Tensor& tensor);
    // The same without a map: rows that begin at multiples of 16 bytes.
    Rows add_rows(const Tensor& tensor);
    // Launches ssd/steps, and returns where it stores.
    ChunkSteps* steps(const Tensor& like);
    // Splits sequences into segments where heads are few.
    void split(SsdArgs& args, i64 blocks, int padded_states, const Tensor& like);
    // Splits, and launches ssd/prefill or ssd/prefill_mma.
    void run(SsdArgs& args, bool gated, const Tensor& like);
    void run(SsdMmaArgs& args, bool gated, const Tensor& like);
};

}  // namespace gdn_cuda::ssd
