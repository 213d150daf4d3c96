#include "library.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <system_error>

#include "text.hpp"
#include "trust.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;

fs::path this_library() {
    static const char kHere = 0;  // not a function, whose address may be that of another library's copy
    Dl_info info{};
    std::error_code ignored;
    if (::dladdr(&kHere, &info) == 0 || info.dli_fname == nullptr) return {};
    return fs::absolute(info.dli_fname, ignored);
}

std::string distrust_of_installed(const struct stat& status) {
    struct stat library {};
    if (::stat(this_library().c_str(), &library) != 0) return distrust_of(status);
    struct stat beyond = status;  // the permissions that the library's file does not give as well
    if (status.st_uid == library.st_uid) beyond.st_uid = ::geteuid();
    if (status.st_gid == library.st_gid) beyond.st_mode &= ~(library.st_mode & S_IWGRP);
    beyond.st_mode &= ~(library.st_mode & S_IWOTH);
    const std::string reason = distrust_of(beyond);
    return reason.empty() ? reason : fmt::format("{} (libgdn_cuda.so: mode {:04o})", reason, library.st_mode & 07777);
}

}  // namespace gdn_cuda::jit
