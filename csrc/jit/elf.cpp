#include "elf.hpp"

#include <elf.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "errors.hpp"
#include "files.hpp"
#include "sha256.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

constexpr std::uint16_t kMachineCuda = 190;      // EM_CUDA
constexpr unsigned char kOtherCudaEntry = 0x10;  // STO_CUDA_ENTRY in st_other: marks a __global__ function
constexpr std::size_t kLargestNote = 1 << 20;
constexpr std::uint64_t kLargestLibrary = std::uint64_t{4} << 30;  // NVRTC has about 0.1 GB

bool is_elf64(std::string_view bytes) {
    return bytes.size() >= sizeof(Elf64_Ehdr) && std::memcmp(bytes.data(), ELFMAG, SELFMAG) == 0 &&
           bytes[EI_CLASS] == ELFCLASS64 && bytes[EI_DATA] == ELFDATA2LSB;
}

// Copies, since the bytes may be unaligned.
template <class T>
std::optional<T> at(std::string_view bytes, std::uint64_t offset) {
    if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

std::optional<std::string_view> contents(std::string_view bytes, const Elf64_Shdr& section) {
    if (section.sh_offset > bytes.size() || section.sh_size > bytes.size() - section.sh_offset) return std::nullopt;
    return bytes.substr(section.sh_offset, section.sh_size);
}

std::vector<Elf64_Shdr> sections(std::string_view bytes) {
    const auto header = *at<Elf64_Ehdr>(bytes, 0);
    std::vector<Elf64_Shdr> result;
    for (unsigned i = 0; i < header.e_shnum; ++i)
        if (auto section = at<Elf64_Shdr>(bytes, header.e_shoff + std::uint64_t{i} * sizeof(Elf64_Shdr)))
            result.push_back(*section);
    return result;
}

std::string build_id_in_notes(std::string_view notes) {
    std::uint64_t offset = 0;
    while (auto note = at<Elf64_Nhdr>(notes, offset)) {
        const std::uint64_t name = offset + sizeof *note;
        const std::uint64_t description = name + (std::uint64_t{note->n_namesz} + 3) / 4 * 4;
        const std::uint64_t end = description + note->n_descsz;
        if (end > notes.size()) break;
        if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && notes.substr(name, 4) == std::string_view("GNU\0", 4))
            return hex({reinterpret_cast<const std::uint8_t*>(notes.data() + description), note->n_descsz});
        offset = description + (std::uint64_t{note->n_descsz} + 3) / 4 * 4;
    }
    return {};
}

std::string read_part(int fd, std::uint64_t offset, std::size_t size) {
    std::string part(size, '\0');
    const ssize_t got = ::pread(fd, part.data(), size, static_cast<off_t>(offset));
    part.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return part;
}

std::string build_id(int fd) {
    const std::string start = read_part(fd, 0, sizeof(Elf64_Ehdr));
    if (!is_elf64(start)) return {};
    const auto header = *at<Elf64_Ehdr>(start, 0);
    const std::string table = read_part(fd, header.e_phoff, std::size_t{header.e_phnum} * sizeof(Elf64_Phdr));
    for (unsigned i = 0; i < header.e_phnum; ++i) {
        const auto segment = at<Elf64_Phdr>(table, std::uint64_t{i} * sizeof(Elf64_Phdr));
        if (!segment || segment->p_type != PT_NOTE || segment->p_filesz > kLargestNote) continue;
        if (std::string id = build_id_in_notes(read_part(fd, segment->p_offset, segment->p_filesz)); !id.empty()) return id;
    }
    return {};
}

}  // namespace

bool is_cubin(std::string_view bytes) {
    if (!is_elf64(bytes)) return false;
    const auto header = *at<Elf64_Ehdr>(bytes, 0);
    const std::uint64_t table = std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr);
    return header.e_machine == kMachineCuda && header.e_shnum != 0 && header.e_shentsize == sizeof(Elf64_Shdr) &&
           header.e_shoff <= bytes.size() && table <= bytes.size() - header.e_shoff;
}

std::vector<std::string> kernel_symbols(std::string_view cubin) {
    std::vector<std::string> names;
    if (!is_cubin(cubin)) return names;
    const std::vector<Elf64_Shdr> all = sections(cubin);
    for (const Elf64_Shdr& table : all) {
        if (table.sh_type != SHT_SYMTAB) continue;
        const auto symbols = contents(cubin, table);
        if (!symbols || table.sh_link >= all.size()) return {};
        const auto strings = contents(cubin, all[table.sh_link]);
        if (!strings) return {};
        for (std::uint64_t offset = 0; auto symbol = at<Elf64_Sym>(*symbols, offset); offset += sizeof(Elf64_Sym)) {
            if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || symbol->st_shndx == SHN_UNDEF) continue;
            if ((symbol->st_other & kOtherCudaEntry) == 0) continue;
            if (symbol->st_name >= strings->size()) return {};
            const std::string_view rest = strings->substr(symbol->st_name);
            const std::size_t length = rest.find('\0');
            if (length == std::string_view::npos || length == 0) return {};
            names.emplace_back(rest.substr(0, length));
        }
    }
    return names;
}

std::string build_identity(const std::filesystem::path& library) {
    std::string why_not;
    const Descriptor file = open_regular(library, kLargestLibrary, &why_not);
    if (!file.valid()) throw Error(fmt::format("{}: expected a readable file, got: {}", library.string(), why_not));
    if (std::string id = build_id(file.get()); !id.empty()) return id;
    const auto bytes = read_descriptor(file.get(), &why_not, kLargestLibrary);
    if (!bytes) throw Error(fmt::format("{}: expected a readable file, got: {}", library.string(), why_not));
    return fmt::format("{}-{}", bytes->size(), sha256_hex(*bytes));
}

}  // namespace gdn_cuda::jit
