// Computes keys, and gets the cubin of a source.
#include "runtime.hpp"

#include <unistd.h>

#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <optional>

#include "cache_place.hpp"
#include "dump.hpp"
#include "env.hpp"
#include "errors.hpp"
#include "fork.hpp"
#include "interrupt.hpp"
#include "key.hpp"
#include "log.hpp"
#include "no_compile.hpp"
#include "nvcc_environment.hpp"
#include "prebuilt.hpp"
#include "store.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

constexpr const char* kFormat = "1";  // increment when the same fields compile to something else
constexpr int kMostAttempts = 3;

// Threads that need the same kernel wait for each other here; processes, at the lock file.
struct Slot {
    Mutex mutex;
    std::optional<Cubin> unpublished;  // compiled here, but could not be written to disk
};

// Never destroyed, since threads may compile during exit; guarded by fork_lock().
struct Slots {
    std::map<std::string, Slot*> by_key;

    Slots() {
        in_forked_child([this] {
            for (auto& [key, slot] : by_key)
                if (slot->mutex.lost()) slot = new Slot;
        });
    }
};
auto& slots = *new Slots;

Slot& slot_of(const std::string& key) {
    const auto lock = fork_lock();
    Slot*& slot = slots.by_key[key];
    if (slot == nullptr) slot = new Slot;
    return *slot;
}

std::string add_to(const std::string& code, const Identities& known) {
    KeyBuilder key;
    key.add("code key", code).add("compiler", known.compiler).add("external headers", known.headers);
    for (const std::string& option : dialect_options(env().use_nvcc)) key.add("option", option);
    return key.hex();
}

std::string key_with(const KernelSource& source, const std::string& arch, const std::string& included) {
    KeyBuilder key;
    key.add("format", kFormat).add("kernel", source.id()).add("source", source.code).add("arch", arch);
    for (const std::string& option : code_options(source, arch)) key.add("option", option);
    key.add("uses cutlass", source.uses_cutlass ? "1" : "0").add("included headers", included);
    return key.hex();
}

class Request {
  public:
    Request(const KernelSource& source, const std::string& arch, bool force)
        : source_(source), arch_(arch), force_(force), start_(std::chrono::steady_clock::now()) {}

    Obtained fulfil() {
        ask_for_interruption();
        for (int attempt = 0; attempt < kMostAttempts; ++attempt)
            if (auto obtained = attempt_once()) {
                obtained->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
                log(Level::debug, fmt::format("{} {} for {}: {} in {:.4f} s", source_.id(), source_.configuration, arch_,
                                              to_string(obtained->origin), obtained->seconds));
                return std::move(*obtained);
            }
        throw Error(fmt::format("{}: expected headers that do not change while it compiles, got {} changes", source_.id(),
                                kMostAttempts));
    }

  private:
    // Empty if a header or the compiler changed meanwhile, and thus the keys.
    std::optional<Obtained> attempt_once() {
        const std::string code = code_key(source_, arch_);
        Slot& slot = slot_of(code);
        std::lock_guard once(slot.mutex);
        if (!force_) {
            if (slot.unpublished) return Obtained{*slot.unpublished, Origin::memory, 0, {}};
            if (auto cubin = find_prebuilt(source_.id(), code)) return Obtained{std::move(*cubin), Origin::prebuilt, 0, {}};
        }
        const std::string key = key_or_refusal();
        if (!force_)
            if (auto cubin = on_disk(key)) return Obtained{std::move(*cubin), Origin::disk, 0, {}};
        refuse_where_forbidden();

        toolchain().require(env().use_nvcc, source_.uses_cutlass);
        const KeyLock lock(Store::instance().directory(), key);
        if (!force_)
            if (auto cubin = on_disk(key)) return Obtained{std::move(*cubin), Origin::disk, 0, {}};
        refuse_where_forbidden();  // compiling may have been forbidden while this thread waited for others
        return compile(slot, key);
    }

    std::optional<Cubin> on_disk(const std::string& key) const {
        // Recompile if only the dumps are missing.
        if (env().dump && !dumped(Store::instance(), source_, key)) return std::nullopt;
        return find_cached(source_.id(), key);
    }

    std::string key_or_refusal() const {
        try {
            return full_key(source_, arch_);
        } catch (const Error&) {
            refuse_where_forbidden();  // instead of asking for a compiler
            throw;
        }
    }

    void refuse_where_forbidden() const {
        if (env().disable)
            throw Error(missing(
                ", and GDN_JIT_DISABLE forbids compiling it now",
                fmt::format("Warm it with `python -m gdn_cuda compile --arch {}`, with the same versions installed", arch_)));
        if (compiling_is_refused())
            throw Error(missing(", and gdn_cuda.no_compile() refuses to compile it now",
                                fmt::format("Call gdn_cuda.warmup(\"{}\", \"{}\") before, or compile ahead of time: `python -m "
                                            "gdn_cuda compile --arch {}`, with --out for GDN_JIT_PREBUILT_DIR",
                                            source_.family, source_.name, arch_)));
    }

    std::string missing(const char* why, const std::string& fix) const {
        std::string prebuilt = env().prebuilt_dir.empty() ? "GDN_JIT_PREBUILT_DIR=(not set)" : "";
        for (const PrebuiltFolder& folder : prebuilt_folders())
            prebuilt += fmt::format("{}{}{}", prebuilt.empty() ? "" : ", ", folder.label,
                                    folder.refusal.empty() ? "" : fmt::format(" (passed over: {})", folder.refusal));
        return fmt::format("{} {} is not compiled for {}{} (looked in {} and the cache {}). {}", source_.id(),
                           source_.configuration, arch_, why, prebuilt,
                           Store::instance().directory().empty() ? "(in memory only)" : Store::instance().directory().string(),
                           fix);
    }

    std::optional<Obtained> compile(Slot& slot, const std::string& key) {
        if (!still(key)) return std::nullopt;
        Compiled compiled =
            env().use_nvcc ? compile_nvcc(source_, arch_, key, toolchain()) : compile_nvrtc(source_, arch_, key, toolchain());
        if (!still(key)) return std::nullopt;
        report(compiled);
        if (!keep_cached(source_.id(), key, compiled.cubin))
            slot.unpublished = compiled.cubin;
        else
            slot.unpublished.reset();
        if (env().dump) dump(Store::instance(), source_, key, compiled, toolchain());
        return Obtained{std::move(compiled.cubin), Origin::compiled, 0, compiled.resources};
    }

    bool still(const std::string& key) const {
        refresh_identities();
        return full_key(source_, arch_) == key;
    }

    void report(const Compiled& compiled) const {
        const Resources& used = compiled.resources;
        const std::string line =
            fmt::format("compiled {} {} in {:.2f} s: {} registers, {} B shared, {} B spills, {} B stack{}", source_.id(),
                        source_.configuration, compiled.seconds, used.registers, used.static_shared_bytes, used.spill_bytes,
                        used.stack_bytes, used.is_serialized ? ", wgmma serialized" : "");
        log(Level::info, line);
        if (!env().print) return;
        const std::string with_newline = line + "\n";
        [[maybe_unused]] const auto written = ::write(STDERR_FILENO, with_newline.data(), with_newline.size());
    }

    const KernelSource& source_;
    const std::string& arch_;
    const bool force_;
    const std::chrono::steady_clock::time_point start_;
};

}  // namespace

std::string code_key(const KernelSource& source, const std::string& arch) {
    capability_of(arch);
    return key_with(source, arch, included_digest(source.code));
}

std::string full_key(const KernelSource& source, const std::string& arch) {
    toolchain().require(env().use_nvcc, source.uses_cutlass);
    const Identities known = identities(source.code, source.uses_cutlass);
    return add_to(key_with(source, arch, known.included), known);
}

const char* to_string(Origin origin) {
    switch (origin) {
        case Origin::memory:
            return "memory";
        case Origin::prebuilt:
            return "prebuilt";
        case Origin::disk:
            return "disk";
        default:
            return "compiled";
    }
}

Obtained obtain(const KernelSource& source, const std::string& arch, bool force) {
    return Request(source, arch, force).fulfil();
}

Obtained export_prebuilt(const KernelSource& source, const std::string& arch, const std::string& directory, bool force) {
    // Prebuilt entries are named without the compiler, so flags that the name does not cover are refused.
    if (const std::string settings = nvcc_settings_of_environment(); env().use_nvcc && !settings.empty())
        throw Error(
            fmt::format("{}: expected no settings of nvcc in the environment when compiling for {}, got {}; unset them "
                        "(NVCC_CCBIN chooses a host compiler)",
                        source.id(), directory, settings));
    Obtained obtained = obtain(source, arch, force);
    Store target(std::filesystem::absolute(directory), std::numeric_limits<std::uint64_t>::max(), Store::Access::exported);
    if (const auto refusal = target.publish(source.id(), code_key(source, arch), obtained.cubin))
        throw Error(fmt::format("{}: expected a writable folder, got {}: {}", source.id(), directory, refusal->reason));
    return obtained;
}

}  // namespace gdn_cuda::jit
