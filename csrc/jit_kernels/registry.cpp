#include "registry.hpp"

#include "impls/gdn/chunk_cumsum.hpp"
#include "impls/gdn/compute_o.hpp"
#include "impls/gdn/compute_u_w.hpp"
#include "impls/gdn/decode.hpp"
#include "impls/gdn/gating.hpp"
#include "impls/gdn/mn_major.hpp"
#include "impls/gdn/prefill.hpp"
#include "impls/gdn/prefill_mma.hpp"
#include "impls/gdn/recurrent.hpp"
#include "impls/gdn/seq_state_update.hpp"
#include "impls/gdn/verify.hpp"
#include "impls/structured/cauchy.hpp"
#include "impls/structured/cauchy_backward.hpp"
#include "impls/structured/cauchy_batch.hpp"
#include "impls/structured/toeplitz_eliminate.hpp"
#include "impls/structured/toeplitz_generators.hpp"
#include "impls/structured/toeplitz_gko.hpp"
#include "impls/structured/toeplitz_matvec.hpp"
#include "impls/structured/toeplitz_pcg.hpp"
#include "impls/structured/toeplitz_schur.hpp"
#include "impls/structured/toeplitz_sums.hpp"
#include "impls/structured/vandermonde.hpp"
#include "impls/structured/vandermonde_moments.hpp"

namespace gdn_cuda {
namespace {

template <class Spec>
RegisteredKernel entry() {
    RegisteredKernel kernel{Spec::family,       Spec::name, Spec::summary, Spec::min_capability, max_capability_of<Spec>(),
                            Spec::uses_cutlass, {}};
    for (const auto& config : Spec::configurations())
        kernel.configurations.push_back({source_of<Spec>(config), Spec::threads(config), Spec::shared_bytes(config),
                                         [config](int ordinal) { jit::kernel<JitSpec<Spec>>(config, ordinal, nullptr); }});
    return kernel;
}

}  // namespace

const std::vector<RegisteredKernel>& registry() {
    static constinit std::atomic<const std::vector<RegisteredKernel>*> all{nullptr};
    return jit::made_once(all, [] {
        return std::vector<RegisteredKernel>{
            entry<gdn::Decode>(),
            entry<gdn::Verify>(),
            entry<gdn::Recurrent>(),
            entry<gdn::Gating>(),
            entry<gdn::ChunkCumsum>(),
            entry<gdn::MnMajor>(),
            entry<gdn::ComputeUW>(),
            entry<gdn::SeqStateUpdate>(),
            entry<gdn::ComputeO>(),
            entry<gdn::Prefill>(),
            entry<gdn::PrefillMma>(),
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
