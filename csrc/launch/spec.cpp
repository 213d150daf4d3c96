#include "spec.hpp"

namespace gdn_cuda {

jit::KernelSource source_of(const char* family, const char* name, const char* config_type, const char* args_type,
                            std::string configuration, bool uses_cutlass) {
    jit::KernelSource source{family, name, std::move(configuration), {}, uses_cutlass};
    source.code = jit::include_of(source.id()) +
                  fmt::format(
                      "using namespace gdn_cuda;\n"
                      "template __global__ void gdn_cuda::{0}::{1}<{0}::{2}{4}>(const __grid_constant__ {0}::{3});\n",
                      family, name, config_type, args_type, source.configuration);
    return source;
}

}  // namespace gdn_cuda
