
#include <chrono>
#include <system_error>

#include "compiler.hpp"
#include "draft.hpp"
#include "env.hpp"
#include "errors.hpp"
#include "files.hpp"
#include "nvcc_environment.hpp"
#include "process.hpp"
#include "store.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kLargestOutput = std::uint64_t{1} << 30;

std::string kept_ptx(const fs::path& folder) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored))
        if (entry.path().extension() == ".ptx") return read_file(entry.path(), kLargestOutput).value_or("");
    return {};
}

}  // namespace

Compiled compile_nvcc(const KernelSource& source, const std::string& arch, const std::string& key, const Toolchain& tools) {
    const auto start = std::chrono::steady_clock::now();
    const TemporaryDirectory temporary = TemporaryDirectory::anywhere(Store::instance().directory());
    const fs::path input = temporary.path() / (source.family + "_" + source.name + ".cu"),
                   output = temporary.path() / "out.cubin";
    if (const std::string reason = write_atomically(input, source.code, 0600); !reason.empty())
        throw Error(fmt::format("{}: cannot write the source for nvcc: {}", source.id(), reason));

    std::vector<std::string> options = code_options(source, arch);
    for (const std::string& option : dialect_options(true)) options.push_back(option);
    options.insert(options.end(), {"-Xptxas", "-v", "--frandom-seed=" + key});
    if (env().dump) options.insert(options.end(), {"--keep", "--keep-dir", temporary.path().string()});
    for (const auto& folder : tools.include_dirs(source.uses_cutlass)) options.push_back("-I" + folder.string());

    std::vector<std::string> arguments = {tools.nvcc.string(), "-x", "cu", input.string(), "-cubin", "-o", output.string()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    ProcessResult result = run_process(arguments, temporary.path(), kNvccIncludeVariables);
    if (!result.started)
        throw Error(fmt::format("{}: expected an nvcc that runs, got: {}", tools.nvcc.string(), result.output));

    Compiled compiled;
    compiled.log = std::move(result.output);
    std::string why_not = "no output file";
    auto cubin = result.exit_code == 0 ? read_file(output, kLargestOutput, &why_not) : std::nullopt;
    if (!cubin || cubin->empty()) {
        const std::string compiler = fmt::format("{} (exit status {})", tools.nvcc.string(), result.exit_code);
        if (result.exit_code == 0) compiled.log += "\nnvcc reported success, but its output cannot be used: " + why_not;
        throw Error(compile_failure(source, arch, compiler, options, compiled.log, tools));
    }
    compiled.cubin.bytes = std::move(*cubin);
    compiled.cubin.symbol = entry_symbol(compiled.cubin.bytes, fmt::format("{} by {}", source.id(), tools.nvcc.string()));
    compiled.resources = parse_ptxas(compiled.log);
    if (env().dump) compiled.ptx = kept_ptx(temporary.path());
    compiled.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return compiled;
}

}  // namespace gdn_cuda::jit
