#include "tunables.hpp"

#include <algorithm>
#include <atomic>

#include "../jit/errors.hpp"
#include "../jit/fork.hpp"
#include "../jit/text.hpp"

namespace gdn_cuda {
namespace {

constinit const RegisteredTuning* last_tuning = nullptr;

}  // namespace

void add_to_tunables(RegisteredTuning& tuning) {
    tuning.next = last_tuning;
    last_tuning = &tuning;
}

const std::vector<Tunable>& tunables() {
    static constinit std::atomic<const std::vector<Tunable>*> all{nullptr};
    return jit::made_once(all, [] {
        std::vector<Tunable> made;
        for (const RegisteredTuning* tuning = last_tuning; tuning != nullptr; tuning = tuning->next)
            made.push_back(tuning->make());
        std::ranges::sort(made, {}, &Tunable::kernel);
        return made;
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
