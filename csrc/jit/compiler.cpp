#include "compiler.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "elf.hpp"
#include "env.hpp"
#include "errors.hpp"
#include "files.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

std::string shell_word(const std::string& text) {
    const auto plain = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("_-+=./:,").find(c) != std::string_view::npos;
    };
    if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
    std::string result = "'";
    for (char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return result + "'";
}

std::string numbered(const std::string& code) {
    std::istringstream lines(code);
    std::string result;
    int number = 0;
    for (std::string line; std::getline(lines, line);) result += fmt::format("{:5} | {}\n", ++number, line);
    return result;
}

std::string reproduction(const KernelSource& source, const std::string& arch, const Toolchain& tools) {
    std::vector<std::string> words = {
        tools.nvcc.empty() ? "nvcc" : tools.nvcc.string(), "-x", "cu", "-", "-cubin", "-o", "/dev/null"};
    for (const auto& options : {code_options(source, arch), dialect_options(true)})
        words.insert(words.end(), options.begin(), options.end());
    for (const auto& folder : tools.include_dirs(source.uses_cutlass)) words.push_back("-I" + folder.string());
    for (std::string& word : words) word = shell_word(word);
    const char* newline = source.code.ends_with('\n') ? "" : "\n";
    return fmt::format("{} <<'GDN_SOURCE'\n{}{}GDN_SOURCE\n", fmt::join(words, " "), source.code, newline);
}

// The number directly before `unit`, as in "Used 24 registers".
std::optional<int> number_before(std::string_view line, std::string_view unit) {
    const std::size_t end = line.find(unit);
    if (end == std::string_view::npos) return std::nullopt;
    std::size_t start = end;
    while (start > 0 && line[start - 1] >= '0' && line[start - 1] <= '9') --start;
    int value = 0;
    if (std::from_chars(line.data() + start, line.data() + end, value).ec != std::errc{}) return std::nullopt;
    return value;
}

}  // namespace

std::vector<std::string> code_options(const KernelSource& source, const std::string& arch) {
    // With CUTLASS's asserts, which are function calls, ptxas would serialize wgmmas.
    std::vector<std::string> options = {"--gpu-architecture=" + arch, "--std=c++20", "-DNDEBUG"};
    if (source.few_registers) options.push_back("--ptxas-options=--register-usage-level=0");
    if (env().lineinfo) options.push_back("-lineinfo");
    return options;
}

std::vector<std::string> dialect_options(bool use_nvcc) {
    // CUTLASS calls unannotated and constexpr functions from device code.
    return {use_nvcc ? "--expt-relaxed-constexpr" : "-default-device"};
}

std::string compile_failure(const KernelSource& source, const std::string& arch, const std::string& compiler,
                            const std::vector<std::string>& options, const std::string& log, const Toolchain& tools) {
    return fmt::format(
        "{} {} did not compile for {}\ncompiler: {}\noptions: {}\nlog:\n{}\nsource:\n{}to reproduce it in a shell:\n{}",
        source.id(), source.configuration, arch, compiler, fmt::join(options, " "), log, numbered(source.code),
        reproduction(source, arch, tools));
}

Resources parse_ptxas(std::string_view log) {
    Resources result;
    while (!log.empty()) {
        const std::string_view line = log.substr(0, log.find('\n'));
        log.remove_prefix(std::min(line.size() + 1, log.size()));
        const auto largest = [line](int& field, std::string_view unit) {
            field = std::max(field, number_before(line, unit).value_or(0));
        };
        largest(result.registers, " registers");
        largest(result.static_shared_bytes, " bytes smem");
        largest(result.stack_bytes, " bytes stack frame");
        result.spill_bytes += number_before(line, " bytes spill stores").value_or(0);
        result.spill_bytes += number_before(line, " bytes spill loads").value_or(0);
        result.is_serialized |= line.find("wgmma.mma_async instructions are serialized") != std::string_view::npos;
    }
    return result;
}

std::string entry_symbol(std::string_view cubin, const std::string& from) {
    if (!is_cubin(cubin))
        throw Error(
            fmt::format("{}: expected a cubin (an ELF file for CUDA), got {} bytes of something else", from, cubin.size()));
    const auto symbols = kernel_symbols(cubin);
    if (symbols.size() != 1)
        throw Error(fmt::format("{}: expected exactly one kernel in the cubin, got {}: [{}]", from, symbols.size(),
                                fmt::join(symbols, ", ")));
    return symbols.front();
}

}  // namespace gdn_cuda::jit
