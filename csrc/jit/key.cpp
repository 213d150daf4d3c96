#include "key.hpp"

namespace gdn_cuda::jit {
namespace {

void add_sized(Sha256& hash, std::string_view text) {
    char size[8];
    for (int i = 0; i < 8; ++i) size[i] = static_cast<char>(std::uint64_t{text.size()} >> (8 * i) & 0xff);
    hash.update({size, sizeof size}).update(text);
}

}  // namespace

KeyBuilder& KeyBuilder::add(std::string_view label, std::string_view value) {
    add_sized(hash_, label);
    add_sized(hash_, value);
    return *this;
}

std::string KeyBuilder::hex() {
    return jit::hex(hash_.digest());
}

}  // namespace gdn_cuda::jit
