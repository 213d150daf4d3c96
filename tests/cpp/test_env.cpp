// Parsing of the environment.
#include <cstdlib>

#include "jit/env.hpp"
#include "jit/log.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

// What `show` reads from the environment with `name` set to `text`.
template <class Show>
std::string parsed(const char* name, const std::string& text, Show show) {
    return in_child({{name, text}}, [&] { return std::string(show(jit::parse_env())); }).value;
}

std::string disabled(const std::string& text) {
    return parsed("GDN_JIT_DISABLE", text, [](const jit::Env& env) { return env.disable ? "yes" : "no"; });
}
std::string size(const std::string& text) {
    return parsed("GDN_JIT_CACHE_MAX_BYTES", text, [](const jit::Env& env) { return std::to_string(env.cache_max_bytes); });
}
std::string level(const std::string& text) {
    return parsed("GDN_LOG_LEVEL", text, [](const jit::Env& env) { return std::to_string(env.log_level); });
}

TEST(Env, Booleans) {
    for (const char* text : {"1", "true", "TRUE", "on", "Yes"}) EXPECT_EQ(disabled(text), "yes") << text;
    for (const char* text : {"", "0", "false", "Off", "no"}) EXPECT_EQ(disabled(text), "no") << text;
    for (const char* text : {"2", "maybe", " 1", "1 ", "-1"})
        EXPECT_EQ(
            disabled(text),
            std::string("error: GDN_JIT_DISABLE: expected 0 or 1 (also true/false, on/off, yes/no), got \"") + text + "\"");
}

TEST(Env, TunedIsOnUnlessItIsSwitchedOff) {
    const auto show = [](const jit::Env& env) { return env.tuned ? "yes" : "no"; };
    for (const char* text : {"", "1", "on"}) EXPECT_EQ(parsed("GDN_TUNED", text, show), "yes") << text;
    for (const char* text : {"0", "off"}) EXPECT_EQ(parsed("GDN_TUNED", text, show), "no") << text;
}

TEST(Env, Sizes) {
    EXPECT_EQ(size(""), "2147483648");
    EXPECT_EQ(size("0"), "0");
    EXPECT_EQ(size("12345"), "12345");
    EXPECT_EQ(size("3K"), "3072");
    EXPECT_EQ(size("3m"), "3145728");
    EXPECT_EQ(size("4G"), "4294967296");
    for (const char* text : {"G", "-1", "1.5G", "1T", "2 G", "0x10", "99999999999999999999", "18446744073709551615K"})
        EXPECT_CONTAINS(size(text), "error: GDN_JIT_CACHE_MAX_BYTES: expected a number of bytes");
}

TEST(Env, Levels) {
    EXPECT_EQ(level(""), "30");
    EXPECT_EQ(level("debug"), "10");
    EXPECT_EQ(level("INFO"), "20");
    EXPECT_EQ(level("off"), "100");
    EXPECT_CONTAINS(level("loud"), "GDN_LOG_LEVEL: expected debug, info, warning, error or off, got \"loud\"");
}

TEST(Env, ALeadingTildeIsAHome) {
    const auto cache = [](const std::string& text, const std::string& home) {
        return in_child({{"GDN_JIT_CACHE_DIR", text}, {"HOME", home}}, [] { return jit::parse_env().cache_dir.string(); })
            .value;
    };
    EXPECT_EQ(cache("~", "/home/me"), "/home/me");
    EXPECT_EQ(cache("~/x/../y", "/home/me"), "/home/me/y");
    EXPECT_EQ(cache("~root/x", "/home/me"), cache("~root", "/home/me") + "/x");
    EXPECT_EQ(cache("/a/~/b", "/home/me"), "/a/~/b");
    EXPECT_EQ(cache("./~", "/home/me"), std::filesystem::absolute("~").string());
    EXPECT_CONTAINS(cache("~", ""), "/");  // the user's, without HOME
    EXPECT_CONTAINS(cache("~nobody of this name/x", "/home/me"), "error: GDN_JIT_CACHE_DIR: expected a path; ~ and ~user");
    EXPECT_CONTAINS(cache("~/x", "relative"), "error: GDN_JIT_CACHE_DIR: expected a path");
    const TemporaryFolder home;
    EXPECT_EQ(
        in_child({{"GDN_CUDA_HOME", "~"}, {"HOME", home.path().string()}}, [] { return jit::parse_env().cuda_home.string(); })
            .value,
        home.path().string());
}

TEST(Env, PathsThatMustExist) {
    const TemporaryFolder folder;
    write(folder / "file", "");
    for (const char* name : {"GDN_JIT_PREBUILT_DIR", "GDN_CUDA_HOME", "GDN_CUTLASS_INCLUDE", "GDN_CCCL_INCLUDE"}) {
        const auto nothing = [](const jit::Env&) { return "fine"; };
        EXPECT_EQ(parsed(name, folder.path().string(), nothing), "fine");
        EXPECT_CONTAINS(parsed(name, "/no/such/folder", nothing),
                        std::string("error: ") + name + ": expected a folder that exists");
        EXPECT_CONTAINS(parsed(name, (folder / "file").string(), nothing), std::string(name) + ": expected a folder");
    }
    const auto nvcc = [](const jit::Env& env) { return env.nvcc.string(); };
    EXPECT_EQ(parsed("GDN_JIT_NVCC", (folder / "file").string(), nvcc), (folder / "file").string());
    EXPECT_CONTAINS(parsed("GDN_JIT_NVCC", folder.path().string(), nvcc), "GDN_JIT_NVCC: expected a file that exists");
}

TEST(Env, ARelativeCacheFolderIsMadeAbsolute) {
    const std::string shown =
        parsed("GDN_JIT_CACHE_DIR", "some/../cache dir", [](const jit::Env& env) { return env.cache_dir.string(); });
    EXPECT_EQ(shown, (std::filesystem::current_path() / "cache dir").string());
}

TEST(Env, TheSnapshotStaysAndAMalformedVariableIsReportedEachTime) {
    const auto result = in_child({{"GDN_JIT_PRINT", "wat"}}, [] {
        const std::string first = message_of([] { jit::env(); }), second = message_of([] { jit::env(); });
        ::setenv("GDN_JIT_PRINT", "1", 1);
        const bool before = jit::env().print;
        ::setenv("GDN_JIT_PRINT", "0", 1);
        return std::string(first == second && before && jit::env().print ? "right" : "wrong");
    });
    EXPECT_EQ(result.value, "right");
}

TEST(Env, EachVariableIsDescribedAndItsDefaultParses) {
    Environment defaults;
    for (const jit::Variable& variable : jit::variables()) {
        EXPECT_TRUE(std::string_view(variable.name).starts_with("GDN_"));
        EXPECT_GT(std::string_view(variable.meaning).size(), 10u);
        defaults.emplace_back(variable.name, variable.default_text);
    }
    const auto show = [] {
        const jit::Env env = jit::parse_env();
        return std::to_string(env.cache_max_bytes) + std::to_string(env.log_level) + std::to_string(env.disable) +
               env.cache_dir.string();
    };
    EXPECT_EQ(in_child(defaults, show).value, in_child({}, show).value);
}

std::optional<int> parse_colour(const std::string& text) {
    return text == "red" ? std::optional(1) : text == "green" ? std::optional(2) : std::nullopt;
}
const jit::Setting kColour({"GDN_COLOUR_OF_TESTS", "red", "what an owner above this layer declares"}, "red or green",
                           parse_colour);

TEST(Env, ASettingOfAnOwnerIsOneOfTheVariables) {
    const auto colour = [](const char* text) {
        return in_child({{"GDN_COLOUR_OF_TESTS", text}}, [] { return std::to_string(kColour.value()); });
    };
    EXPECT_EQ(colour("").value, "1");
    EXPECT_EQ(colour("GREEN").value, "2");
    EXPECT_EQ(colour("green").stderr_text, "") << "no warning of an unknown variable";
    EXPECT_CONTAINS(colour("Blue").value, "error: GDN_COLOUR_OF_TESTS: expected red or green, got \"Blue\"");
    const auto another = [](const jit::Env& env) { return std::to_string(env.disable); };
    EXPECT_CONTAINS(parsed("GDN_COLOUR_OF_TESTS", "blue", another), "error: GDN_COLOUR_OF_TESTS: expected red or green");
    const auto result = in_child({{"GDN_COLOR_OF_TESTS", "green"}}, [] { return std::to_string(kColour.value()); });
    EXPECT_EQ(result.value, "1");
    EXPECT_CONTAINS(result.stderr_text,
                    "GDN_COLOR_OF_TESTS: gdn_cuda has no such variable; the nearest is GDN_COLOUR_OF_TESTS");
}

TEST(Env, ASettingStaysAsItWasAtFirstUse) {
    const auto result = in_child({{"GDN_COLOUR_OF_TESTS", "green"}}, [] {
        const int first = kColour.value();
        ::setenv("GDN_COLOUR_OF_TESTS", "red", 1);
        return std::to_string(first) + std::to_string(kColour.value());
    });
    EXPECT_EQ(result.value, "22");
}

TEST(Log, LevelsAndOnce) {
    const auto say = [] {
        jit::log(jit::Level::info, "quiet");
        jit::log(jit::Level::warning, "loud");
        jit::log_once(jit::Level::error, "once");
        jit::log_once(jit::Level::error, "once");
        return std::string();
    };
    EXPECT_EQ(in_child({}, say).stderr_text, "gdn_cuda: warning: loud\ngdn_cuda: error: once\n");
    EXPECT_EQ(in_child({{"GDN_LOG_LEVEL", "off"}}, say).stderr_text, "");
    EXPECT_CONTAINS(in_child({{"GDN_LOG_LEVEL", "debug"}}, say).stderr_text, "gdn_cuda: info: quiet\n");
    EXPECT_CONTAINS(in_child({{"GDN_LOG_LEVEL", "wat"}}, say).stderr_text, "loud");
}

TEST(Log, ASinkHearsEverything) {
    CapturedLog log;
    jit::log(jit::Level::debug, "small");
    EXPECT_EQ(log.count("small"), 1u);
}

}  // namespace
}  // namespace gdn_cuda::test
