// SHA-256 (FIPS 180-4), incremental.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gdn_cuda::jit {

class Sha256 {
  public:
    Sha256();
    Sha256& update(std::string_view bytes);
    std::array<std::uint8_t, 32> digest();  // call once, last

  private:
    void block(const std::uint8_t* bytes);

    std::array<std::uint32_t, 8> state_;
    std::array<std::uint8_t, 64> pending_;
    std::uint64_t length_ = 0;
};

inline constexpr std::size_t kDigestLength = 64;  // of sha256_hex

std::string hex(std::span<const std::uint8_t> bytes);
std::string sha256_hex(std::string_view bytes);

}  // namespace gdn_cuda::jit
