#include "includes.hpp"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

namespace gdn_cuda::jit {
namespace {

constexpr int kEnd = -1;
constexpr std::array<std::string_view, 3> kDirectives = {"include", "include_next", "import"};
constexpr std::array<std::string_view, 2> kIncludeQueries = {"__has_include", "__has_include_next"};
constexpr std::array<std::string_view, 5> kRawPrefixes = {"R", "LR", "uR", "UR", "u8R"};
constexpr std::size_t kMostDelimiter = 16;

bool is_one_of(const auto& words, std::string_view word) {
    return std::ranges::find(words, word) != words.end();
}

bool is_digit(int c) {
    return c >= '0' && c <= '9';
}
// Characters of identifiers and numbers, including UTF-8 bytes.
bool is_word(int c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c >= 0x80;
}

bool is_blank(int c) {
    return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\r';
}

// The first translation phases: joins continued lines, and separates comments and literals from code.
class Scanner {
  public:
    explicit Scanner(std::string_view text, Macros* macros = nullptr) : text_(text), macros_(macros) {
        if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // byte order mark
    }

    Includes scan() {
        bool line_start = true;
        while (peek() != kEnd) {
            if (peek() == '\n') {
                take();
                line_start = true;
                in_directive_ = false;
                parameter_.clear();
            } else if (!skip_blank()) {
                line_start = token(line_start);
            }
        }
        return std::move(found_);
    }

  private:
    // The next character, with continued lines joined.
    int peek() {
        while (at_ < text_.size() && text_[at_] == '\\') {
            const std::size_t next = text_.find_first_not_of(" \t\v\f\r", at_ + 1);
            if (next == text_.npos || text_[next] != '\n') break;
            const std::string_view between = text_.substr(at_ + 1, next - at_ - 1);
            if (!between.empty() && between != "\r") {  // a continuation to gcc but not to NVRTC
                found_.unclear = true;
                break;
            }
            at_ = next + 1;
        }
        if (at_ >= text_.size()) return kEnd;
        if (text_[at_] == '\r' && text_.substr(at_ + 1, 1) != "\n") found_.unclear = true;  // ends a line for gcc
        return static_cast<unsigned char>(text_[at_]);
    }
    int take() {
        const int c = peek();
        if (c != kEnd) ++at_;
        return c;
    }
    bool take_if(int c) {
        if (peek() != c) return false;
        ++at_;
        return true;
    }

    // Skips blanks and comments, but no line end outside a comment; false if there were none.
    bool skip_blank() {
        bool skipped = false;
        for (;; skipped = true) {
            if (is_blank(peek())) {
                ++at_;
                continue;
            }
            const std::size_t before = at_;
            if (!take_if('/')) return skipped;
            if (take_if('/')) {
                while (peek() != '\n' && peek() != kEnd) ++at_;
            } else if (take_if('*')) {
                skip_block_comment();
            } else {
                at_ = before;
                return skipped;
            }
        }
    }
    void skip_block_comment() {
        for (int c = take(); c != kEnd; c = take())
            if (c == '*' && take_if('/')) return;
        found_.unclear = true;
    }

    // Takes a token; whether the next is still the first of its line.
    bool token(bool line_start) {
        const int c = peek();
        if (is_word(c)) {
            const std::string word = take_word();
            if (is_one_of(kIncludeQueries, word)) {
                if (skip_blank_and_take('(')) take_name(word == "__has_include_next");
            } else if (macros_ != nullptr && in_directive_ && skip_blank_and_take('(')) {
                take_argument(word);
            }
            if (is_one_of(kRawPrefixes, word) && peek() == '"') skip_raw_string();
        } else if (c == '"' || c == '\'') {
            skip_literal();
        } else if (take(); line_start && (c == '#' || (c == '%' && take_if(':')))) {
            in_directive_ = true;
            skip_blank();
            const std::size_t before = at_;
            const std::string directive = take_word();
            if (is_one_of(kDirectives, directive)) {
                take_name(directive == "include_next");
            } else {
                at_ = before;
                if (macros_ != nullptr && directive == "define") define();
            }
        }
        return false;
    }

    std::string take_word() {
        std::string word;
        const bool number = is_digit(peek());
        while (is_word(peek()) || (number && is_separator())) word += static_cast<char>(take());
        return word;
    }
    // Whether this ' is a digit separator (1'000).
    bool is_separator() {
        if (peek() != '\'') return false;
        const std::size_t before = at_++;
        const bool inside = is_word(peek());
        at_ = before;
        return inside;
    }

    // A literal ends at the line end at the latest, since compilers skip text such as #if 0 \n don't \n #endif.
    void skip_literal() {
        const int quote = take();
        while (peek() != '\n' && peek() != kEnd) {
            const int c = take();
            if (c == quote) return skip_suffix();
            if (c == '\\' && peek() != '\n') take();
        }
    }
    // What follows directly is a literal suffix, a macro name, or the prefix of the next literal.
    void skip_suffix() {
        if (is_one_of(kRawPrefixes, take_word()) && peek() == '"') found_.unclear = true;
    }

    // R"delimiter( ... )delimiter" has no line joining and no escapes.
    void skip_raw_string() {
        take();
        const std::size_t open = text_.find('(', at_);
        const std::string_view delimiter = open == text_.npos ? text_.substr(at_) : text_.substr(at_, open - at_);
        const std::string close = ")" + std::string(delimiter.substr(0, kMostDelimiter + 1)) + "\"";
        const std::size_t end = open == text_.npos ? open : text_.find(close, open);
        if (delimiter.size() > kMostDelimiter || delimiter.find_first_of(" \t\v\f\r\n\\)\"") != text_.npos || end == text_.npos)
            found_.unclear = true;  // not a valid raw string
        else if (in_directive_ && text_.substr(open, end - open).find('\n') != text_.npos)
            found_.unclear = true;  // gcc ends it at the line end
        else
            at_ = end + close.size();
    }

    bool skip_blank_and_take(int c) {
        skip_blank();
        return take_if(c);
    }

    // Takes "define", name and parameters, and looks at what follows.
    void define() {
        take_word();
        skip_blank();
        Macro& macro = macros_->defined.emplace_back(Macro{take_word(), {}, {}});
        defined_ = macro.name;
        bool is_simple = true;
        if (take_if('(')) {
            skip_blank();
            macro.parameter = take_word();
            is_simple = skip_blank_and_take(')');
            while (!is_simple && peek() != ')' && peek() != '\n' && peek() != kEnd) take();
        }
        parameter_ = macro.parameter;
        const std::size_t before = at_;
        if (is_simple) macro.include = whole_name();
        at_ = before;
    }
    // <name> or "name", if the line has nothing else.
    std::optional<Include> whole_name() {
        skip_blank();
        const int open = peek(), close = open == '<' ? '>' : '"';
        if (open != '<' && open != '"') return std::nullopt;
        take();
        Include include{{}, open == '"'};
        while (peek() != '\n' && peek() != kEnd) {
            const int c = take();
            if (c == close) {
                skip_blank();
                return peek() == '\n' || peek() == kEnd ? std::optional(include) : std::nullopt;
            }
            include.name += static_cast<char>(c);
        }
        return std::nullopt;
    }

    // Lists the name that a directive calls something with.
    void take_argument(const std::string& called) {
        skip_blank();
        if (is_word(peek())) {
            macros_->called_by_word.insert(called);
        } else if (peek() == '<' || peek() == '"') {
            const std::size_t before = at_;
            const int close = take() == '<' ? '>' : '"';
            Include include{{}, close == '"'};
            while (peek() != '\n' && peek() != kEnd && peek() != close) include.name += static_cast<char>(take());
            if (peek() == close) list(std::move(include));
            at_ = before;
        }
    }

    // Takes NAME or NAME(argument); false for anything else.
    bool take_macro() {
        MacroInclude used{take_word(), {}};
        if (used.macro.empty() || is_digit(used.macro.front())) return false;
        if (in_directive_ && used.macro == parameter_) {
            macros_->queries.push_back(defined_);
            return true;
        }
        if (skip_blank_and_take('(')) {
            while (is_word(peek()) || peek() == '/' || peek() == '.' || peek() == '-')
                used.argument += static_cast<char>(take());
            if (!take_if(')')) return false;
        }
        macros_->used.push_back(std::move(used));
        return true;
    }

    // Takes <name> or "name", which contain neither comments nor escapes.
    void take_name(bool next) {
        skip_blank();
        const int open = peek(), close = open == '<' ? '>' : '"';
        if (macros_ != nullptr && next) found_.unclear = true;
        if (open != '<' && open != '"') {
            if (macros_ == nullptr || !take_macro()) found_.unclear = true;
            return;
        }
        take();
        Include include{{}, open == '"'};
        while (peek() != '\n' && peek() != kEnd) {
            const int c = take();
            if (c == close) return list(std::move(include));
            include.name += static_cast<char>(c);
        }
        found_.unclear = true;
    }
    void list(Include include) {
        if (seen_.insert((include.quoted ? '"' : '<') + include.name).second) found_.listed.push_back(std::move(include));
    }

    std::string_view text_;
    Macros* const macros_;  // null: a macro's include is unclear
    std::size_t at_ = 0;
    bool in_directive_ = false;
    std::string defined_, parameter_;  // the macro that this line defines, if it has a parameter
    Includes found_;
    std::unordered_set<std::string> seen_;
};

}  // namespace

Includes includes_of(std::string_view text) {
    return Scanner(text).scan();
}

Includes includes_of(std::string_view text, Macros& macros) {
    return Scanner(text, &macros).scan();
}

// One line per include: its opening delimiter and the name, which holds no line end.
std::string to_memo(const Includes& includes) {
    std::string text = includes.unclear ? "?\n" : "";
    for (const Include& include : includes.listed) text += (include.quoted ? '"' : '<') + include.name + '\n';
    return text;
}

Includes from_memo(std::string_view text) {
    Includes includes;
    while (!text.empty()) {
        const std::string_view line = text.substr(0, text.find('\n'));
        if (line == "?")
            includes.unclear = true;
        else if (!line.empty())
            includes.listed.push_back({std::string(line.substr(1)), line.front() == '"'});
        text.remove_prefix(std::min(line.size() + 1, text.size()));
    }
    return includes;
}

}  // namespace gdn_cuda::jit
