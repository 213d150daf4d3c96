// Checks and arguments that ssd_scan and its gradients share.
#pragma once

#include <array>
#include <gdn_cuda/ssd.hpp>
#include <vector>

#include "../../jit/tensor_map.hpp"
#include "../../operators/operator.hpp"
#include "checkpoints.hpp"
#include "prefill.hpp"
#include "prefill_mma.hpp"
#include "steps.hpp"

namespace gdn_cuda::ssd {

// The tensors of a call, each read from torch once.
struct SsdViews {
    // `without_batch`: packed tensors may be (T, …), and get a batch dimension of size 1 here.
    explicit SsdViews(const SsdScan& call, bool without_batch = false);
    SsdViews(const SsdViews&) = delete;
    SsdViews& operator=(const SsdViews&) = delete;

    View x, dt, A, B, C, D, z, dt_bias, initial_state, cu_seqlens, seq_idx, has_initial_state, out;

  private:
    struct Dimensions {
        std::array<int64_t, 5> sizes, strides;  // one more than is right, so that a shape check refuses that
    };
    std::array<Dimensions, 6> with_batch_;
};

struct Prepared {
    View x;  // SsdViews'
    DType io;
    int64_t batch, tokens, heads, channels, groups, states, sequences;
    SsdStepsArgs steps;
    SsdArgs args;
    bool deterministic;

    // Slots of chunks.
    int64_t slots() const {
        return steps.cu_seqlens.data == nullptr ? batch * ceil_div(tokens, kChunk) : tokens / kChunk + sequences;
    }
};
// A call that may report states.
struct PreparedScan : Prepared {
    SsdCheckpointsArgs checkpoints{};
};

Prepared prepare(const Checks& check, const SsdScan& call, const SsdViews& views);

// A tensor (B, T, heads or groups, elements) or (T, …), as TMA reads it.
jit::TiledTensor tiled(const View& view);

// The tensor itself if its rows begin at multiples of 16 bytes, as TMA and 16-byte copies need it, else a copy.
Tensor tileable(const Tensor& x);

// States (count, H, P, N), a head's contiguous.
// `may_be_coded`: also int8, as gdn/move_states reads it.
SsdStates check_states(const Checks& check, const char* argument, const View& states, const Prepared& prepared, int64_t count,
                       bool may_be_coded = false);

// Where states are reported, and which buffers they go to. `cu_seqlens` may be absent.
void check_checkpoints(const Checks& check, PreparedScan& prepared, const SsdCheckpoints& reported, const View& cu_seqlens);

void require_kernel(const Checks& check, const Prepared& prepared);

// New states, to which the first pass stores.
Tensor new_last_states(Prepared& prepared);

// Whether ssd/prefill_mma runs in place of ssd/prefill.
bool uses_mma(const Target& target);

// What a launch reads beside the caller's tensors.
struct Inputs {
    const Prepared& prepared;
    const Target& target;
    common::TokenRows packed_out{};  // zeroed for tokens of no sequence
    std::vector<Tensor> kept{};

    TensorMap map(const jit::TiledTensor& tensor) const;
    // Maps the tensor if TMA can read it, else a copy.
    TensorMap add(const View& view, const Tensor& tensor) { return map(tileable_view(view, tensor)); }
    TensorMap add(const Tensor& tensor) { return add(View(tensor), tensor); }
    // The same without a map: rows that begin at multiples of 16 bytes.
    Rows add_rows(const View& view, const Tensor& tensor) { return tileable_view(view, tensor).rows; }
    Rows add_rows(const Tensor& tensor) { return add_rows(View(tensor), tensor); }
    // Launches ssd/checkpoints if a call reports states, and returns the table that it makes.
    SsdChunkTable table(SsdCheckpointsArgs args);
    // Splits sequences into segments where heads are few, launches ssd/steps, and returns where it stores.
    ChunkSteps* prepare_scan(SsdArgs& args, i64 blocks, int padded_states);
    // The same, and launches ssd/prefill or ssd/prefill_mma.
    ChunkSteps* run(SsdArgs& args, bool gated);
    ChunkSteps* run(SsdMmaArgs& args, bool gated);

  private:
    jit::TiledTensor tileable_view(const View& view, const Tensor& tensor);
};

}  // namespace gdn_cuda::ssd
