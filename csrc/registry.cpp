#include "registry.hpp"

#include "families/chunked/launch.hpp"
#include "families/common/transposed_copy.hpp"
#include "families/conv/causal_conv.hpp"
#include "families/conv/causal_conv_backward.hpp"
#include "families/conv/causal_conv_tile.hpp"
#include "families/conv/causal_states.hpp"
#include "families/conv/causal_step.hpp"
#include "families/conv/hyena_filter.hpp"
#include "families/conv/hyena_long.hpp"
#include "families/conv/hyena_long_backward.hpp"
#include "families/conv/hyena_medium.hpp"
#include "families/conv/hyena_medium_backward.hpp"
#include "families/conv/hyena_short.hpp"
#include "families/conv/hyena_short_backward.hpp"
#include "families/conv/hyena_step.hpp"
#include "families/gdn/chunk_cumsum.hpp"
#include "families/gdn/chunk_gates.hpp"
#include "families/gdn/compute_o.hpp"
#include "families/gdn/compute_u_w.hpp"
#include "families/gdn/decode.hpp"
#include "families/gdn/mn_major.hpp"
#include "families/gdn/move_states.hpp"
#include "families/gdn/prefill_mma.hpp"
#include "families/gdn/recurrent.hpp"
#include "families/gdn/recurrent_any.hpp"
#include "families/gdn/replay.hpp"
#include "families/gdn/seq_state_update.hpp"
#include "families/gdn/variables.hpp"
#include "families/gdn/verify.hpp"
#include "families/layers/decode_layer.hpp"
#include "families/layers/gating.hpp"
#include "families/layers/rms_norm.hpp"
#include "families/layers/rms_norm_backward.hpp"
#include "families/layers/split_backward.hpp"
#include "families/layers/split_columns.hpp"
#include "families/layers/split_conv.hpp"
#include "families/scan/diagonal_scan.hpp"
#include "families/scan/diagonal_scan_backward.hpp"
#include "families/scan/diagonal_scan_parts.hpp"
#include "families/scan/rglru.hpp"
#include "families/scan/rglru_backward.hpp"
#include "families/scan/s7.hpp"
#include "families/scan/selective_backward.hpp"
#include "families/scan/selective_backward_sums.hpp"
#include "families/scan/selective_forward.hpp"
#include "families/scan/selective_pieces.hpp"
#include "families/scan/selective_starts.hpp"
#include "families/scan/selective_step.hpp"
#include "families/scan/simplified_step.hpp"
#include "families/scan/variables.hpp"
#include "families/structured/cauchy.hpp"
#include "families/structured/cauchy_backward.hpp"
#include "families/structured/cauchy_batch.hpp"
#include "families/structured/toeplitz_eliminate.hpp"
#include "families/structured/toeplitz_generators.hpp"
#include "families/structured/toeplitz_gko.hpp"
#include "families/structured/toeplitz_matvec.hpp"
#include "families/structured/toeplitz_pcg.hpp"
#include "families/structured/toeplitz_schur.hpp"
#include "families/structured/toeplitz_sums.hpp"
#include "families/structured/vandermonde.hpp"
#include "families/structured/vandermonde_moments.hpp"

namespace gdn_cuda {
namespace {

template <class Spec>
RegisteredKernel entry() {
    RegisteredKernel kernel{Spec::family,       Spec::name, Spec::summary, Spec::min_capability, max_capability_of<Spec>(),
                            Spec::uses_cutlass, {}};
    using Config = typename Spec::Config;
    const auto load = [](const void* config, int ordinal) {
        jit::kernel<JitSpec<Spec>>(*static_cast<const Config*>(config), ordinal, nullptr);
    };
    const std::span<const Config> all = Spec::configurations();
    for (std::size_t i = 0; i < all.size(); ++i)
        kernel.configurations.push_back(
            {source_of<Spec>(all[i]), Spec::threads(all[i]), Spec::shared_bytes(all[i]), &all[i], load});
    return kernel;
}

}  // namespace

const std::vector<RegisteredKernel>& registry() {
    static constinit std::atomic<const std::vector<RegisteredKernel>*> all{nullptr};
    return jit::made_once(all, [] {
        return std::vector<RegisteredKernel>{
            entry<conv::CausalBackward>(),
            entry<conv::CausalBackwardColumns>(),
            entry<conv::CausalBackwardRows>(),
            entry<conv::CausalConv>(),
            entry<conv::CausalConvChannelsLast>(),
            entry<conv::CausalStatesBackward>(),
            entry<conv::CausalFinalStates>(),
            entry<conv::CausalStep>(),
            entry<conv::CausalStepAny>(),
            entry<conv::CausalStepStaged>(),
            entry<conv::CausalTile>(),
            entry<conv::HyenaFilterBackwardKernel>(),
            entry<conv::HyenaFilterKernel>(),
            entry<conv::HyenaFirStep>(),
            entry<conv::HyenaFirStaged>(),
            entry<conv::HyenaLong>(),
            entry<conv::HyenaLongBackward>(),
            entry<conv::HyenaLongStates>(),
            entry<conv::HyenaMedium>(),
            entry<conv::HyenaMediumBackward>(),
            entry<conv::HyenaModalStep>(),
            entry<conv::HyenaShort>(),
            entry<conv::HyenaShortColumns>(),
            entry<conv::HyenaShortBackward>(),
            entry<conv::HyenaShortColumnsBackward>(),
            entry<layers::RmsNorm>(),
            entry<layers::RmsNormBackward>(),
            entry<layers::SplitBackward>(),
            entry<layers::SplitColumns>(),
            entry<layers::SplitConv>(),
            entry<gdn::Decode>(),
            entry<layers::DecodeLayer>(),
            entry<gdn::Verify>(),
            entry<gdn::Recurrent>(),
            entry<gdn::Replay>(),
            entry<gdn::RecurrentAny>(),
            entry<layers::Gating>(),
            entry<gdn::ChunkCumsum>(),
            entry<gdn::ChunkGates>(),
            entry<gdn::MnMajor>(),
            entry<gdn::MoveStates>(),
            entry<gdn::ComputeUW>(),
            entry<gdn::SeqStateUpdate>(),
            entry<gdn::ComputeO>(),
            entry<gdn::Prefill>(),
            entry<gdn::PrefillAhead>(),
            entry<gdn::PrefillMma>(),
            entry<scan::DiagonalScan>(),
            entry<scan::DiagonalScanBackward>(),
            entry<scan::DiagonalScanParts>(),
            entry<scan::Rglru>(),
            entry<scan::RglruBackward>(),
            entry<scan::S7Outer>(),
            entry<scan::S7Product>(),
            entry<scan::S7States>(),
            entry<scan::SelectiveForward>(),
            entry<scan::SelectiveBackward>(),
            entry<scan::SelectiveBackwardSums>(),
            entry<scan::SelectivePieces>(),
            entry<scan::SelectiveStarts>(),
            entry<scan::SelectiveStep>(),
            entry<scan::SelectiveStepDirect>(),
            entry<scan::SimplifiedStep>(),
            entry<common::TransposedCopy>(),
            entry<structured::Cauchy>(),
            entry<structured::CauchyBatch>(),
            entry<structured::CauchyBackward>(),
            entry<structured::Vandermonde>(),
            entry<structured::VandermondeMoments>(),
            entry<structured::ToeplitzSums>(),
            entry<structured::ToeplitzMatvec>(),
            entry<structured::ToeplitzGko>(),
            entry<structured::ToeplitzGenerators>(),
            entry<structured::ToeplitzEliminate>(),
            entry<structured::ToeplitzSchur>(),
            entry<structured::ToeplitzPcg>(),
        };
    });
}

}  // namespace gdn_cuda
