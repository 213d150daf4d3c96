// Lists the includes of a source text from its directives alone: nothing is preprocessed, so every branch of a conditional
// counts.
#pragma once

#include <compare>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gdn_cuda::jit {

struct Include {
    std::string name;  // as spelled
    bool quoted = false;

    auto operator<=>(const Include&) const = default;
};

struct Includes {
    std::vector<Include> listed;  // in order, without duplicates; with the operands of __has_include
    // The list may be incomplete: a name comes from a macro, or compilers tokenize this text differently.
    bool unclear = false;
};

Includes includes_of(std::string_view text);

// #include NAME or #include NAME(argument).
struct MacroInclude {
    std::string macro, argument;

    auto operator<=>(const MacroInclude&) const = default;
};
// A macro of at most one parameter whose replacement is <name> or "name"; `include` is empty for every other macro.
struct Macro {
    std::string name, parameter;
    std::optional<Include> include;
};
struct Macros {
    std::vector<MacroInclude> used;
    std::vector<Macro> defined;            // in any branch of a conditional
    std::vector<std::string> queries;      // those that ask __has_include of their argument
    std::set<std::string> called_by_word;  // what directives call with an argument that starts with a word: by macros, perhaps
};
// Includes by macros do not make the list unclear, but #include_next does. <name> and "name" are listed wherever a directive
// calls something with them.
Includes includes_of(std::string_view text, Macros& macros);

// Serialization for a memo.
std::string to_memo(const Includes& includes);
Includes from_memo(std::string_view text);

}  // namespace gdn_cuda::jit
