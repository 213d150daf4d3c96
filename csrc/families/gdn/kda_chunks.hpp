// Kimi Delta Attention by chunks: gdn/kda_prepare, then gdn/kda_own.
#pragma once

#include "../chunked/launch.hpp"
#include "kda_own.hpp"
#include "kda_prepare.hpp"
#include "prepared.hpp"

namespace gdn_cuda::gdn {

// Prepared chunks in global memory: records, and a word of flags for each.
struct KdaWorkspace {
    KdaRecord* records;
    unsigned* flags;
};
inline int64_t kda_records(const Sequences& sequences) {
    return sequences.chunks_at_most(kChunk);
}
// Whether the kernels take the call: rows that TMA tiles and that start on 16 bytes, dk up to 128, and gates of contiguous
// channels.
bool fits_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors);

void prepare_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors, const KdaWorkspace& workspace,
                        const Target& target);
void own_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors, const KdaWorkspace& workspace,
                    const Target& target);

}  // namespace gdn_cuda::gdn
