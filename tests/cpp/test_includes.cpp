// Include directives of a text: those that a compiler sees, and text that only looks like one.
#include "jit/includes.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

using jit::includes_of;

// The includes as "<a> "b"", with a leading ? if the list may be incomplete.
std::string listed(std::string_view text) {
    const jit::Includes found = includes_of(text);
    std::string result = found.unclear ? "?" : "";
    for (const jit::Include& include : found.listed) {
        if (!result.empty()) result += ' ';
        result += include.quoted ? '"' + include.name + '"' : '<' + include.name + '>';
    }
    const jit::Includes remembered = jit::from_memo(jit::to_memo(found));
    EXPECT_EQ(remembered.listed, found.listed) << text;
    EXPECT_EQ(remembered.unclear, found.unclear) << text;
    return result;
}

TEST(Includes, AnIncludeIsFoundWhateverItsSpaces) {
    for (const char* text : {"#include <a>",
                             "#include<a>",
                             "  #\tinclude\v<a>",
                             "/* x */ # /* y */ include /* z\n */ <a> // w",
                             "#inc\\\nlude <a>",
                             "#include \\\n<a>",
                             "#inc\\\r\nlude <a>\r\n",
                             "%:include <a>",
                             "%\\\n: include <a>",
                             "\xef\xbb\xbf#include <a>",
                             "#include_next <a>",
                             "#import <a>",
                             "#include <a> junk",
                             "int x; // y\n#include <a>",
                             "/* x\n */#include <a>",
                             "#include <a>\n#include <a>",
                             "\\\n#include <a>",
                             "#if __has_include(<a>)",
                             "#if defined(X) && __has_include ( <a> )",
                             "#if X \\\n && __has_include(<a>)"})
        EXPECT_EQ(listed(text), "<a>") << text;
    EXPECT_EQ(listed("#include \"a/../b c.h\"\n#include <c\"d'e//f/*g>\n"), "\"a/../b c.h\" <c\"d'e//f/*g>");
    EXPECT_EQ(listed("#include \"a\\b\"\n#include <\\n>"), "\"a\\b\" <\\n>") << "nothing is escaped in a name";
    EXPECT_EQ(listed("#include \"a\"\n#include <a>\n"), "\"a\" <a>");
}

TEST(Includes, TextThatOnlyLooksLikeAnInclude) {
    for (const char* text :
         {"// #include <a>", "// \\\n#include <a>", "/*\n#include <a>\n*/", "/* /* */ /*\n#include <a>\n*/",
          "const char* s = \"\\\n#include <a>\";", "const char* s = R\"(\n#include <a>\n)\";",
          "auto s = u8R\"x(\n)\" #include <a>\n)x\";", "x #include <a>", "# includes <a>", "#define include <a>",
          "#ifdef include", "#define S \"#include <a>\"", "# /* include */ define <a>", "#ifdef __has_include",
          "#pragma once\n", "", "int x; /*\n*/ #include <a>", "has_include(<a>)", "#error include <a>"})
        EXPECT_EQ(listed(text), "") << text;
}

TEST(Includes, AnIncludeAfterAnyLineIsFound) {
    for (const char* before : {"int x = 1'000;",
                               "int x = 0x1'a'b; // '",
                               "const char* s = \"'/*\"; int y = 1'0;",
                               "char c = '\"';",
                               "char c = '\\'';",
                               "const char* s = \"\\\"/*\";",
                               "const char* s = \"\\\\\";",
                               "#if 0\ndon't /*\n#endif",
                               "#error it's \"so",
                               "auto s = R\"(\\)\"; /* ' */",
                               "auto s = FOOR\"(/*\";",
                               "auto s = LR\"/*(\n)/*\";",
                               "x = a / b /* c **/;",
                               "/**/",
                               "//*",
                               "auto s = R\"(\n/*\n)\";",
                               "auto s = R\"a()b\")a\";",
                               "#define X(y) #y /* \" */",
                               "int \xc3\xa4 = 'x';",
                               "/*\\\n*\\\n/",
                               "const char* s = \"\\\n/*\";",
                               "auto c = u8'\"'; auto d = L'\\\"';",
                               "#if __has_include(<b>)\n#include <b>"})
        EXPECT_TRUE(listed(std::string(before) + "\n#include <a>\n").ends_with("<a>")) << before;
}

TEST(Includes, EveryBranchCounts) {
    EXPECT_EQ(listed("#if 0\n#include <a>\n#elif X\n#include <b>\n#else\n#include <c>\n#endif\n"), "<a> <b> <c>");
    EXPECT_EQ(listed("#ifdef X\n# if Y\n#  include <a>\n# endif\n#endif\n#include <b>\n"), "<a> <b>");
}

TEST(Includes, AnUndecidableTextIsReportedAsUnclear) {
    for (const char* text :
         {"#include HEADER", "#include MAKE(<a>)", "#include", "#include <a", "#include \"a\n", "#include /* <a> */\n",
          "#if __has_include(HEADER)", "#include \\ \n<a>", "/* #include <a>", "auto s = R\"(#include <a>",
          "auto s = R\"a very long delimiter(x)\";", "// x\r#include <a", "// x \\ \n", "\"\"R\"(x\n", "#define S R\"(\n)\""})
        EXPECT_TRUE(includes_of(text).unclear) << text;
    EXPECT_EQ(listed("#include <a>\n#include HEADER\n#include <b>\n"), "? <a> <b>");
    EXPECT_EQ(listed("// x\\\t\n#include <a>\n"), "? <a>") << "a comment for gcc, an include for NVRTC";
}

TEST(Includes, ALongListIsReadFast) {
    std::string text;
    for (int i = 0; i < 10'000; ++i) text += "#include \"header" + std::to_string(i) + ".cuh\"\n";
    const jit::Includes found = includes_of(text + text);
    ASSERT_EQ(found.listed.size(), 10'000u);
    EXPECT_EQ(found.listed.back().name, "header9999.cuh");
    EXPECT_EQ(jit::from_memo(jit::to_memo(found)).listed, found.listed);
}

TEST(Includes, ATruncatedTextIsReadToItsEnd) {
    const std::string text =
        "#include <a> /* b */ \\\n // c\n%:include \"d\"\nR\"x(\n)x\" 'e' \"f\\\"\" 1'0 __has_include(<g>) \\ \n#include H\n";
    for (std::size_t from = 0; from < text.size(); ++from)
        for (std::size_t size = 0; size <= text.size() - from; ++size)
            EXPECT_LE(includes_of(text.substr(from, size)).listed.size(), 3u);
}

}  // namespace
}  // namespace gdn_cuda::test
