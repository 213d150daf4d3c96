// What a text includes, by its directives alone: nothing is preprocessed, so an include in any branch of a conditional counts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gdn_cuda::jit {

struct Include {
    std::string name;  // as it is spelled
    bool quoted = false;

    bool operator==(const Include&) const = default;
};

struct Includes {
    std::vector<Include> listed;  // in their order, each once; operands of __has_include too, whose existence decides
    // There may be others: the name comes from a macro, or compilers split this text into lines and tokens in different ways.
    bool unclear = false;
};

Includes includes_of(std::string_view text);

// As one text, and back: for a memo.
std::string to_memo(const Includes& includes);
Includes from_memo(std::string_view text);

}  // namespace gdn_cuda::jit
