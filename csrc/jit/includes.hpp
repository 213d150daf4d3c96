// Lists the includes of a source text from its directives alone: nothing is preprocessed, so every branch of a conditional
// counts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gdn_cuda::jit {

struct Include {
    std::string name;  // as spelled
    bool quoted = false;

    bool operator==(const Include&) const = default;
};

struct Includes {
    std::vector<Include> listed;  // in order, without duplicates; with the operands of __has_include
    // The list may be incomplete: a name comes from a macro, or compilers tokenize this text differently.
    bool unclear = false;
};

Includes includes_of(std::string_view text);

// Serialization for a memo.
std::string to_memo(const Includes& includes);
Includes from_memo(std::string_view text);

}  // namespace gdn_cuda::jit
