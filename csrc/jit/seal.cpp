// The trailer of a cache entry.

#include <array>
#include <cstring>

#include "errors.hpp"
#include "sha256.hpp"
#include "store.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

constexpr std::string_view kMagic = "gdn_cuda cubin 1";

// At the end of the file, after cubin and symbol.
struct Footer {
    std::array<char, kKeyLength> key;
    std::array<unsigned char, 8> cubin_bytes, symbol_bytes;  // little endian
    std::array<std::uint8_t, 32> digest;                     // of all preceding bytes
    std::array<char, kMagic.size()> magic;
};
static_assert(sizeof(Footer) == kTrailerBytes && alignof(Footer) == 1);

std::array<unsigned char, 8> encode(std::uint64_t value) {
    std::array<unsigned char, 8> bytes;
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(value >> (8 * i));
    return bytes;
}

std::uint64_t decode(const std::array<unsigned char, 8>& bytes) {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= std::uint64_t{bytes[i]} << (8 * i);
    return value;
}

// Checks the footer's fields, but not the digest.
std::string problem_of(const Footer& footer, std::uint64_t file_bytes) {
    if (std::string_view(footer.magic.data(), footer.magic.size()) != kMagic)
        return "it lacks the footer of a cache entry: truncated, or not made by gdn_cuda";
    const std::uint64_t cubin = decode(footer.cubin_bytes), symbol = decode(footer.symbol_bytes),
                        body = file_bytes - sizeof footer;
    if (cubin > body || symbol != body - cubin) return "its length is not the recorded one";
    return {};
}

std::string problem_of(std::string_view file, const std::string& key, Footer& footer) {
    if (file.size() < sizeof footer) return fmt::format("its {} bytes are fewer than those of an empty entry", file.size());
    std::memcpy(&footer, file.data() + file.size() - sizeof footer, sizeof footer);
    if (std::string problem = problem_of(footer, file.size()); !problem.empty()) return problem;
    const std::size_t body = file.size() - sizeof footer;
    if (Sha256().update(file.substr(0, body + offsetof(Footer, digest))).digest() != footer.digest)
        return "its contents do not match its digest";
    if (!key.empty() && std::string_view(footer.key.data(), footer.key.size()) != key) return "it is the entry of another key";
    return {};
}

}  // namespace

std::string seal(const Cubin& cubin, const std::string& key) {
    if (key.size() != kKeyLength) throw Error(fmt::format("seal: key: expected {} characters, got {}", kKeyLength, key.size()));
    Footer footer{};
    std::memcpy(footer.key.data(), key.data(), kKeyLength);
    footer.cubin_bytes = encode(cubin.bytes.size());
    footer.symbol_bytes = encode(cubin.symbol.size());
    std::memcpy(footer.magic.data(), kMagic.data(), kMagic.size());
    const char* raw = reinterpret_cast<const char*>(&footer);
    std::string file = cubin.bytes + cubin.symbol + std::string(raw, offsetof(Footer, digest));
    footer.digest = Sha256().update(file).digest();
    return file.append(raw + offsetof(Footer, digest), sizeof footer - offsetof(Footer, digest));
}

bool is_trailer(std::string_view end, std::uint64_t file_bytes, std::string_view key) {
    Footer footer;
    if (end.size() != sizeof footer || file_bytes < sizeof footer) return false;
    std::memcpy(&footer, end.data(), sizeof footer);
    return problem_of(footer, file_bytes).empty() && std::string_view(footer.key.data(), footer.key.size()) == key;
}

std::optional<Cubin> unseal(const std::string& file, const std::string& key, std::string* why_not) {
    Footer footer;
    if (std::string problem = problem_of(file, key, footer); !problem.empty()) {
        if (why_not != nullptr) *why_not = std::move(problem);
        return std::nullopt;
    }
    const std::size_t cubin = decode(footer.cubin_bytes), symbol = decode(footer.symbol_bytes);
    return Cubin{file.substr(0, cubin), file.substr(cubin, symbol)};
}

}  // namespace gdn_cuda::jit
