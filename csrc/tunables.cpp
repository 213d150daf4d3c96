#include "tunables.hpp"

#include "families/scan/diagonal_parts.hpp"
#include "families/scan/selective_forward.hpp"
#include "families/scan/selective_step.hpp"
#include "families/structured/cauchy.hpp"
#include "families/structured/vandermonde.hpp"
#include "launch/tuned.hpp"

namespace gdn_cuda {
namespace {

template <class Tuning>
struct AsText {
    using Tables = TunedTables<Tuning>;
    using Problem = typename Tuning::Problem;

    static Problem problem_of(const std::string& text) {
        if (const auto problem = from_text<Problem>(text)) return *problem;
        throw jit::Error(
            fmt::format("{}: problem: expected a form like {}, got {}", Tuning::kernels.front(), to_text(Problem{}), text));
    }
    static std::vector<std::string> candidates(const std::string& problem, const jit::DeviceTraits& device) {
        std::vector<std::string> texts;
        for (const auto& choice : Tuning::candidates(problem_of(problem), device)) texts.push_back(to_text(choice));
        return texts;
    }
    static std::string explain(const std::string& problem, const jit::DeviceTraits& device) {
        return Tuning::explain(problem_of(problem), device, tuned<Tuning>(device));
    }
    static void attempt(const std::string& problem, const std::string& choice, const jit::DeviceTraits& device) {
        const Problem asked = problem_of(problem);
        const auto listed = Tables::candidate(choice, asked, device);
        if (!listed)
            throw jit::Error(fmt::format("{}: choice: expected one of {}, got {}", Tuning::kernels.front(),
                                         fmt::join(candidates(problem, device), ", "), choice));
        Tables::attempt(asked, *listed, device.ordinal);
    }
};

template <class Tuning>
Tunable entry() {
    using Text = AsText<Tuning>;
    using Tables = TunedTables<Tuning>;
    return {.kernel = Tuning::kernels.front(),
            .problem = to_text(typename Tuning::Problem{}),
            .version = [] { return jit::tuned_version(Tuning::kernels); },
            .candidates = &Text::candidates,
            .explain = &Text::explain,
            .attempt = &Text::attempt,
            .attempted = &Tables::attempted,
            .forget = &Tables::forget};
}

}  // namespace

const std::vector<Tunable>& tunables() {
    static constinit std::atomic<const std::vector<Tunable>*> all{nullptr};
    return jit::made_once(all, [] {
        return std::vector<Tunable>{
            entry<scan::DiagonalTuning>(),     entry<scan::SelectiveForwardTuning>(),  entry<scan::SelectiveStepTuning>(),
            entry<structured::CauchyTuning>(), entry<structured::VandermondeTuning>(),
        };
    });
}

const Tunable& tunable(const std::string& kernel) {
    std::string known;
    for (const Tunable& one : tunables()) {
        if (one.kernel == kernel) return one;
        known += (known.empty() ? "" : ", ") + one.kernel;
    }
    throw jit::Error(fmt::format("tuning: expected a kernel among {}, got {}", known, kernel));
}

}  // namespace gdn_cuda
