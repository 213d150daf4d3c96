// A cache key: SHA-256 over labelled, length-prefixed fields, so no two different field lists hash the same bytes.
#pragma once

#include "sha256.hpp"

namespace gdn_cuda::jit {

class KeyBuilder {
  public:
    KeyBuilder& add(std::string_view label, std::string_view value);
    std::string hex();  // 64 characters; call once, last

  private:
    Sha256 hash_;
};

}  // namespace gdn_cuda::jit
