// Converts structs to text and back: the form of configurations, problems and choices in generated sources, files and messages.
// Structs name their members by GDN_FIELDS.
#pragma once

#include <charconv>
#include <gdn_cuda/kernels/common/types.cuh>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "../jit/text.hpp"

namespace gdn_cuda {

// An enumeration among the members has a function `word_of`: how C++ code in namespace gdn_cuda writes a value, "?" for none.
inline const char* name_of(DType type) {
    switch (type) {
        case DType::f32:
            return "f32";
        case DType::bf16:
            return "bf16";
        case DType::f16:
            return "f16";
        case DType::i32:
            return "i32";
        case DType::i64:
            return "i64";
        case DType::f64:
            return "f64";
        case DType::c64:
            return "c64";
        case DType::c128:
            return "c128";
        case DType::i8:
            return "i8";
    }
    return "?";
}

// The designated initialiser of a struct's value. Without fmt, whose format strings compilers check anew for every member.
template <class Struct>
std::string to_text(const Struct& value) {
    std::string text;
    Struct::fields(value, [&](const char* name, auto member) {
        text += text.empty() ? "." : ", .";
        text += name;
        text += " = ";
        using Member = decltype(member);
        if constexpr (std::is_same_v<Member, DType>) {
            text += "DType::";
            text += name_of(member);
        } else if constexpr (std::is_enum_v<Member>) {
            text += word_of(member);
        } else if constexpr (std::is_same_v<Member, bool>) {
            text += member ? "true" : "false";
        } else {
            static_assert(std::is_integral_v<Member>);
            text += std::to_string(member);
        }
    });
    return "{" + text + "}";
}

// Parses the output of to_text; empty for any other text, since the result must convert back to the same text.
template <class Struct>
std::optional<Struct> from_text(std::string_view text) {
    Struct value{};
    Struct::fields(value, [&](const char* name, auto& member) {
        const std::string label = fmt::format(".{} = ", name);
        const std::size_t at = text.find(label);
        if (at == std::string_view::npos) return;
        const std::string_view rest = text.substr(at + label.size()), word = rest.substr(0, rest.find_first_of(",}"));
        using Member = std::remove_reference_t<decltype(member)>;
        if constexpr (std::is_same_v<Member, DType>) {
            for (int i = static_cast<int>(DType::f32); i <= static_cast<int>(DType::i8); ++i)
                if (word == fmt::format("DType::{}", name_of(static_cast<DType>(i)))) member = static_cast<DType>(i);
        } else if constexpr (std::is_enum_v<Member>) {
            for (int i = 0; *word_of(static_cast<Member>(i)) != '?'; ++i)
                if (word == word_of(static_cast<Member>(i))) member = static_cast<Member>(i);
        } else if constexpr (std::is_same_v<Member, bool>) {
            member = word == "true";
        } else {
            std::from_chars(word.data(), word.data() + word.size(), member);
        }
    });
    return to_text(value) == text ? std::optional(value) : std::nullopt;
}

}  // namespace gdn_cuda
