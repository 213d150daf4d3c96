// Stored winners in memory, one table per device. A Tuning (families/<family>/<kernel>.hpp) has a GDN_TUNING, and defines
//     using Problem, Choice;                               both with GDN_FIELDS
//     static constexpr std::array kernels;                 ids of the kernels that its choices run; winners are stored
//                                                          under the first
//     candidates(problem, traits) -> std::vector<Choice>   the heuristic's choice first; none if the kernels do not run it
//     explain(problem, traits, winners) -> std::string
#pragma once

#include <array>
#include <deque>
#include <optional>

#include "../jit/errors.hpp"
#include "../jit/fork.hpp"
#include "../jit/log.hpp"
#include "../jit/tuned_store.hpp"
#include "tunables.hpp"
#include "winners.hpp"

namespace gdn_cuda {

template <class Tuning>
using WinnersOf = Winners<typename Tuning::Problem, typename Tuning::Choice>;

template <class Tuning>
class TunedTables {
  public:
    using Table = WinnersOf<Tuning>;
    using Problem = typename Tuning::Problem;
    using Choice = typename Tuning::Choice;

    // Null if there are no winners. Files are read at first use, once per device; without winners, later calls take one branch.
    static const Table* of(const jit::DeviceTraits& device) {
        if (device.ordinal == jit::kStandIn) [[unlikely]]
            return stand_in_table(device);
        const Table* table = slot(device.ordinal).load(std::memory_order_acquire);
        if (table == &kNone) [[likely]]
            return nullptr;
        return table != nullptr ? table : read(device);
    }

    // Until forget(), only this winner applies on the device. For tuning: no other thread may call concurrently.
    static void attempt(const Problem& problem, const Choice& choice, int ordinal) {
        const auto kept = kept_.lock();
        slot(ordinal).store(keep(*kept, {{problem, choice, 0, 0}}), std::memory_order_release);
    }
    static bool attempted(int ordinal) {
        const Table* table = slot(ordinal).load(std::memory_order_acquire);
        return table != nullptr && table->used.load(std::memory_order_relaxed);
    }
    // Makes the next call read the files again.
    static void forget() {
        const auto kept = kept_.lock();
        for (auto& one : slots_) one.store(nullptr, std::memory_order_release);
    }

    static std::optional<Choice> candidate(const std::string& text, const Problem& problem, const jit::DeviceTraits& device) {
        for (const Choice& choice : Tuning::candidates(problem, device))
            if (to_text(choice) == text) return choice;
        return std::nullopt;
    }

  private:
    static inline const Table kNone{};
    static inline std::array<std::atomic<const Table*>, jit::kMostDevices> slots_{};  // null: not read yet

    static std::atomic<const Table*>& slot(int ordinal) {
        if (ordinal < 0 || ordinal >= jit::kMostDevices) [[unlikely]]
            throw jit::Error(fmt::format("device: expected an ordinal below {}, got {}", jit::kMostDevices, ordinal));
        return slots_[static_cast<std::size_t>(ordinal)];
    }
    // Never freed: another thread may still be reading a replaced table.
    static inline jit::Guarded<std::deque<Table>> kept_;

    static const Table* keep(std::deque<Table>& kept, std::vector<Winner<Problem, Choice>> all) {
        kept.emplace_back().all = std::move(all);
        return &kept.back();
    }
    static const Table* read(const jit::DeviceTraits& device) {
        const auto kept = kept_.lock();
        std::atomic<const Table*>& mine = slot(device.ordinal);
        if (const Table* table = mine.load(std::memory_order_relaxed)) return table == &kNone ? nullptr : table;
        std::vector<Winner<Problem, Choice>> all = winners_for(device);
        const Table* table = all.empty() ? &kNone : keep(*kept, std::move(all));
        mine.store(table, std::memory_order_release);
        return table == &kNone ? nullptr : table;
    }
    // Read at every call, as each may have another device; valid until this thread's next one.
    static const Table* stand_in_table(const jit::DeviceTraits& device) {
        thread_local Table table;
        table.all = winners_for(device);
        return table.all.empty() ? nullptr : &table;
    }
    static std::vector<Winner<Problem, Choice>> winners_for(const jit::DeviceTraits& device) {
        std::vector<Winner<Problem, Choice>> all;
        for (const jit::TunedEntry& entry : jit::tuned_entries(Tuning::kernels, device)) {
            const auto problem = from_text<Problem>(entry.problem);
            const auto choice = problem ? candidate(entry.choice, *problem, device) : std::nullopt;
            if (choice)
                all.push_back({*problem, *choice, entry.us, entry.heuristic_us});
            else
                jit::log_once(jit::Level::warning,
                              fmt::format("tuned entry of {} for {}: {} is not one of its choices; it is ignored", entry.kernel,
                                          entry.problem, entry.choice));
        }
        return all;
    }
};

template <class Tuning>
const WinnersOf<Tuning>* tuned(const jit::DeviceTraits& device) {
    return TunedTables<Tuning>::of(device);
}

// The members of a Tunable: the same by text.
template <class Tuning>
struct AsText {
    using Tables = TunedTables<Tuning>;
    using Problem = typename Tuning::Problem;

    static Problem problem_of(const std::string& text) {
        if (const auto problem = from_text<Problem>(text)) return *problem;
        throw jit::Error(
            fmt::format("{}: problem: expected a form like {}, got {}", Tuning::kernels.front(), to_text(Problem{}), text));
    }
    static auto choices_of(const Problem& problem, const jit::DeviceTraits& device) {
        auto all = Tuning::candidates(problem, device);
        if (all.empty())
            throw jit::Error(fmt::format("{}: problem: expected one that this kernel runs, got {}", Tuning::kernels.front(),
                                         to_text(problem)));
        return all;
    }
    static std::vector<std::string> candidates(const std::string& problem, const jit::DeviceTraits& device) {
        std::vector<std::string> texts;
        for (const auto& choice : choices_of(problem_of(problem), device)) texts.push_back(to_text(choice));
        return texts;
    }
    static std::string explain(const std::string& problem, const jit::DeviceTraits& device) {
        const Problem asked = problem_of(problem);
        choices_of(asked, device);
        return Tuning::explain(asked, device, tuned<Tuning>(device));
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
Tunable tunable_of() {
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
template <class Tuning>
struct TuningRegistration : RegisteredTuning {
    TuningRegistration() : RegisteredTuning{&tunable_of<Tuning>} { add_to_tunables(*this); }
};
// In a Tuning: its place among the tunables.
#define GDN_TUNING(Tuning) inline static const ::gdn_cuda::TuningRegistration<Tuning> registration

}  // namespace gdn_cuda
