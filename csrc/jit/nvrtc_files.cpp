#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <vector>

#include "nvrtc.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kLibrary = "libnvrtc.so";
constexpr std::string_view kBuiltins = "libnvrtc-builtins.so";

// "libnvrtc.so.13.0.88" -> {13, 0, 88}; empty otherwise.
std::vector<int> version_after(std::string_view name, std::string_view stem) {
    std::vector<int> numbers;
    if (!name.starts_with(stem)) return numbers;
    name.remove_prefix(stem.size());
    while (!name.empty()) {
        int number = 0;
        const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), number);
        if (name.front() != '.' || error != std::errc{}) return {};
        numbers.push_back(number);
        name.remove_prefix(static_cast<std::size_t>(end - name.data()));
    }
    return numbers;
}

// The version in the file name, or in that of the symlink's target if longer.
std::vector<int> nvrtc_version(const fs::path& nvrtc) {
    std::error_code ignored;
    auto version = version_after(nvrtc.filename().string(), kLibrary);
    const auto real = version_after(fs::canonical(nvrtc, ignored).filename().string(), kLibrary);
    return real.size() > version.size() ? real : version;
}

fs::path newest(const fs::path& folder, std::string_view stem, const std::vector<int>& required) {
    std::error_code error;
    std::vector<int> best;
    fs::path found;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
        const auto version = version_after(entry.path().filename().string(), stem);
        const std::size_t common = std::min({version.size(), required.size(), std::size_t{2}});
        if (version.empty() || !std::equal(version.begin(), version.begin() + common, required.begin())) continue;
        // prefer libnvrtc.so.13, which survives an update, to its target libnvrtc.so.13.0.88
        const bool better = found.empty() || version[0] > best[0] || (version[0] == best[0] && version.size() < best.size()) ||
                            (version.size() == best.size() && version > best);
        if (better) best = version, found = entry.path();
    }
    return found;
}

}  // namespace

fs::path newest_nvrtc(const fs::path& folder) {
    return newest(folder, kLibrary, {});
}

fs::path builtins_beside(const fs::path& nvrtc) {
    const auto version = nvrtc_version(nvrtc);
    std::error_code ignored;
    if (fs::path found = newest(nvrtc.parent_path(), kBuiltins, version); !found.empty()) return found;
    return newest(fs::canonical(nvrtc, ignored).parent_path(), kBuiltins, version);
}

std::string expected_builtins(const fs::path& nvrtc) {
    const auto version = nvrtc_version(nvrtc);
    if (version.empty()) return fmt::format("{}.*", kBuiltins);
    return version.size() < 2 ? fmt::format("{}.{}.*", kBuiltins, version[0])
                              : fmt::format("{}.{}.{}", kBuiltins, version[0], version[1]);
}

}  // namespace gdn_cuda::jit
