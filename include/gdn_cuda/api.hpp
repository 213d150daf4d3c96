// gdn_cuda for C++ programs. The functions of the Python package under the same names, each with a struct of its arguments
// (arguments.hpp); gdn_cuda/<family> says what each computes and takes. One libgdn_cuda.so serves every torch from 2.10 on.
//
// CUDA tensors run on torch's current stream; libtorch_cuda.so must be loaded (link it, or dlopen it as examples/layer.cpp
// does). CPU tensors run the reference, which is Python: they need `import gdn_cuda` in this process. Wrong input throws
// std::invalid_argument (`function: argument: expected X, got Y`); a toolchain or cache problem, std::runtime_error.
#pragma once

#include <filesystem>
#include <gdn_cuda/conv.hpp>
#include <gdn_cuda/gdn.hpp>
#include <gdn_cuda/layers.hpp>
#include <gdn_cuda/scan.hpp>
#include <gdn_cuda/ssd.hpp>
#include <gdn_cuda/structured.hpp>
#include <string>

#pragma GCC visibility push(default)

namespace gdn_cuda {

// Optional: where the kernel headers are (the folder holding gdn_cuda/kernels) and the CUDA toolkit. Empty: found through the
// environment (GDN_CUDA_HOME) and /usr/local/cuda; a C++ program has no wheels to search.
void init(const std::filesystem::path& library_root = {}, const std::filesystem::path& cuda_home = {});

// Loads every configuration of a kernel ("gdn/recurrent"; empty: all kernels) for a device, compiling what is missing, so that
// none has to be loaded during a graph capture. Returns how many.
int warmup(const std::string& kernel = {}, int device = 0);

// While one exists, this process compiles nothing, in whichever thread: a kernel that is neither loaded nor stored is a
// std::runtime_error that names it. For servers, after warmup(). A compile that has begun goes on.
class NoCompile {
  public:
    NoCompile();
    ~NoCompile();
    NoCompile(const NoCompile&) = delete;
    NoCompile& operator=(const NoCompile&) = delete;
};

}  // namespace gdn_cuda

#pragma GCC visibility pop
