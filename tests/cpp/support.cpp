#include "support.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "jit/env.hpp"
#include "jit/files.hpp"

namespace gdn_cuda::test {
namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
    std::string pattern =
        (fs::temp_directory_path() / "gdn test XXXXXX").string();  // with a space, because users' paths may have one
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

void write(const fs::path& path, std::string_view text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::string read(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

void set_age(const fs::path& path, std::chrono::seconds age) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

std::string tiny_cubin(const std::vector<std::string>& entries) {
    std::string strings(1, '\0');
    std::vector<Elf64_Sym> symbols(1);
    for (const std::string& entry : entries) {
        Elf64_Sym symbol{};
        symbol.st_name = static_cast<Elf64_Word>(strings.size());
        symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
        symbol.st_other = 0x10;
        symbol.st_shndx = 1;
        symbols.push_back(symbol);
        strings += entry + '\0';
    }
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_machine = 190;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = 3;
    const std::size_t symbol_bytes = symbols.size() * sizeof(Elf64_Sym);
    Elf64_Shdr sections[3] = {};
    sections[1].sh_type = SHT_STRTAB;
    sections[1].sh_offset = sizeof header;
    sections[1].sh_size = strings.size();
    sections[2].sh_type = SHT_SYMTAB;
    sections[2].sh_link = 1;
    sections[2].sh_offset = sizeof header + strings.size();
    sections[2].sh_size = symbol_bytes;
    header.e_shoff = sizeof header + strings.size() + symbol_bytes;
    const auto raw = [](const auto* data, std::size_t size) { return std::string(reinterpret_cast<const char*>(data), size); };
    return raw(&header, sizeof header) + strings + raw(symbols.data(), symbol_bytes) + raw(sections, sizeof sections);
}

jit::Cubin cubin_of(const std::string& symbol) {
    return {tiny_cubin({symbol}), symbol};
}

std::string key_of(char digit) {
    return std::string(64, digit);
}

pid_t start_child(const std::function<int()>& body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body());
    return child;
}

int wait_for(pid_t child) {
    int status = 0;
    if (::waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

ChildResult in_child(const Environment& environment, const std::function<std::string()>& body) {
    const TemporaryFolder folder;
    const fs::path value = folder / "value", messages = folder / "stderr", home = folder / "home";
    fs::create_directories(home);
    const pid_t child = start_child([&] {
        const jit::Descriptor answer(::open(value.c_str(), O_WRONLY | O_CREAT, 0600));  // before `body` may give up its rights
        for (const jit::Variable& variable : jit::variables()) ::unsetenv(variable.name);
        ::unsetenv("XDG_CACHE_HOME");
        ::setenv("HOME", home.c_str(), 1);
        for (const auto& [name, text] : environment) ::setenv(name, text.c_str(), 1);
        ::dup2(::open(messages.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
        std::string result;
        try {
            result = body();
        } catch (const std::exception& error) {
            result = std::string("error: ") + error.what();
        }
        return ::write(answer.get(), result.data(), result.size()) == static_cast<ssize_t>(result.size()) ? 0 : 1;
    });
    const int exit_code = wait_for(child);
    ChildResult result{read(value), read(messages), exit_code != 0};
    EXPECT_EQ(exit_code, 0) << result.stderr_text;
    return result;
}

CapturedLog::CapturedLog() {
    jit::set_log_sink([this](jit::Level level, const std::string& text) { messages_.emplace_back(level, text); });
}

std::vector<std::string> CapturedLog::at_least(jit::Level level) const {
    std::vector<std::string> result;
    for (const auto& [of, text] : messages_)
        if (of >= level) result.push_back(text);
    return result;
}

std::size_t CapturedLog::count(std::string_view part) const {
    std::size_t result = 0;
    for (const auto& [level, text] : messages_) result += contains(text, part) ? 1 : 0;
    return result;
}

}  // namespace gdn_cuda::test
