// What the kernels of the chunked form do not take as it is, made into what they take: rows with gaps, gates in other forms,
// states of other dtypes and strides, or that only some sequences read.
#pragma once

#include <vector>

#include "prepared.hpp"

namespace gdn_cuda::gdn {

class ChunkInputs {
  public:
    // `like`: any tensor of the call; memory is allocated like it.
    ChunkInputs(Prepared& prepared, const Tensor& like, const Target& target)
        : prepared_(prepared), like_(like), target_(target) {}

    // Copies 16-bit query, key and value whose rows have gaps.
    void close_gaps(const Tensor& query, const Tensor& key, const Tensor& value);
    // Copies gates of channels that gdn/kda_prepare does not take.
    void fit_channel_gates(const OptionalTensor& gate);
    void convert_gates();
    // Between the two, the call's states are dense, of fp32 and in place. A call with plain states and neither
    // has_initial_state nor write_indices needs neither.
    void gather_states();
    void scatter_states() const;

  private:
    View copied(const Tensor& tensor);

    Prepared& prepared_;
    const Tensor& like_;
    const Target& target_;
    GdnCall call_{};            // as it came
    std::vector<Tensor> kept_;  // memory in use
};

// Runs whole chunks on tensor cores where device and tensors allow, else token by token. The choice does not depend on what a
// sequence is batched with, except that more than kMaxGridYZ sequences go token by token. `like`: any tensor of the call.
void run_by_chunk(Prepared& prepared, ChunkInputs& inputs, bool deterministic, const Tensor& like, const char* function,
                  const Target& target);

bool has_chunk_gates(const GdnCall& args);
// Whether gates of channels are contiguous pairs of fp32 or of the dtype of rows.
bool has_paired_channel_gates(const Prepared& prepared);
bool moves_states(const Prepared& prepared);

}  // namespace gdn_cuda::gdn
