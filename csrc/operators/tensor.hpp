// A view of a torch tensor, read once through the stable ABI, and the checks that operators share. Every error reads `function:
// argument: expected X, got Y` and is raised as ValueError in Python before anything is launched.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <gdn_cuda/arguments.hpp>
#include <gdn_cuda/kernels/common/types.cuh>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>

#include "../launch/spec.hpp"
#include "overlap.hpp"

namespace gdn_cuda {

// Torch's enum values, read once, since each read is a call through the shim.
struct TorchNumbers {
    int32_t f32 = aoti_torch_dtype_float32(), bf16 = aoti_torch_dtype_bfloat16(), f16 = aoti_torch_dtype_float16();
    int32_t i32 = aoti_torch_dtype_int32(), i64 = aoti_torch_dtype_int64(), boolean = aoti_torch_dtype_bool();
    int32_t f64 = aoti_torch_dtype_float64(), c64 = aoti_torch_dtype_complex64(), c128 = aoti_torch_dtype_complex128();
    int32_t i8 = aoti_torch_dtype_int8();
    int32_t cuda = aoti_torch_device_type_cuda(), cpu = aoti_torch_device_type_cpu();
    int32_t meta = aoti_torch_device_type_meta();
};
inline const TorchNumbers torch_numbers;

struct View {
    // For a meta tensor with elements this is not an address, but not null, and aligned as the tensor's offset into its
    // storage.
    void* data = nullptr;
    int rank = 0;
    const int64_t* sizes = nullptr;
    const int64_t* strides = nullptr;
    int32_t dtype = 0;  // torch's enum value
    int32_t device_type = 0, device_index = 0;

    View() = default;
    explicit View(const Tensor& tensor);  // throws for an undefined tensor (None)

    bool defined() const { return sizes != nullptr; }
    int64_t size(int dim) const { return sizes[dim < 0 ? rank + dim : dim]; }
    // 0 for a dimension of size 1, whose stride in torch is arbitrary.
    int64_t stride(int dim) const { return size(dim) <= 1 ? 0 : strides[dim < 0 ? rank + dim : dim]; }
    int64_t numel() const;
    bool is_cuda() const { return device_type == torch_numbers.cuda; }
    bool is_cpu() const { return device_type == torch_numbers.cpu; }
    bool has_memory() const { return is_cuda() || is_cpu(); }  // so `data` is an address
    bool same_shape(std::initializer_list<int64_t> shape) const;
    // Whether the last `dims` dimensions are contiguous.
    bool contiguous_tail(int dims) const;
    // Whether the base and all strides but the last are multiples of 16 bytes.
    bool aligned16() const;
};

View view_of(const OptionalTensor& tensor);

inline std::optional<DType> dtype_of(const View& view) {  // nullopt: unsupported
    if (view.dtype == torch_numbers.bf16) return DType::bf16;
    if (view.dtype == torch_numbers.f32) return DType::f32;
    if (view.dtype == torch_numbers.f16) return DType::f16;
    if (view.dtype == torch_numbers.i32) return DType::i32;
    if (view.dtype == torch_numbers.i64) return DType::i64;
    if (view.dtype == torch_numbers.f64) return DType::f64;
    if (view.dtype == torch_numbers.c64) return DType::c64;
    if (view.dtype == torch_numbers.c128) return DType::c128;
    if (view.dtype == torch_numbers.i8) return DType::i8;
    return std::nullopt;
}
std::string dtype_name(ScalarType type);  // as Python calls it
std::string dtype_name(const View& view);
std::string device_text(const View& view);
std::string shape_text(const View& view);
std::string shape_text(std::initializer_list<int64_t> shape);
std::string stride_text(const View& view);

[[noreturn]] void fail(const char* function, const char* argument, const std::string& expected, const std::string& got);

// The memory that a call accesses through an argument. It is empty for an undefined view, and for a meta tensor, whose storage
// cannot be distinguished from another's: neither a trace nor an explained call refuses arguments that overlap.
struct Memory : Strided {
    const char* argument;

    Memory(const char* argument, const View& view) : argument(argument) {
        if (!view.defined() || !view.has_memory()) return;
        const auto type = dtype_of(view);
        static_cast<Strided&>(*this) = {view.data, view.sizes, view.strides, view.rank, type ? bytes_of(*type) : 1};
    }
};

// The checks of one call; each throws or returns.
struct Checks {
    const char* function;

    void rank(const char* argument, const View& view, int rank, const char* layout) const;
    void shape(const char* argument, const View& view, std::initializer_list<int64_t> shape, const char* layout) const;
    DType dtype(const char* argument, const View& view, std::initializer_list<DType> allowed) const;
    // float32, bfloat16 or float16, and float64 where no kernel computes.
    DType number(const char* argument, const View& view) const;
    void device(const char* argument, const View& view, const View& as, const char* as_name) const;
    void last_contiguous(const char* argument, const View& view) const;
    // Every element of an output has its own address.
    void distinct(const char* argument, const View& view) const;
    // Outputs share no byte with any other argument. Extents may interleave, as slices of packed rows do.
    void apart(std::initializer_list<Memory> written, std::initializer_list<Memory> read) const;
    // Converts to int, for a kernel argument.
    int count(const char* argument, const char* unit, int64_t value, int64_t most = std::numeric_limits<int>::max()) const;
    // The grid is within CUDA's limits.
    void grid(const char* argument, const Blocks& blocks) const;
    [[noreturn]] void fail(const char* argument, const std::string& expected, const std::string& got) const {
        gdn_cuda::fail(function, argument, expected, got);
    }
};

// A macro, so that error text is formatted only on failure: a warm call takes a few microseconds.
#define GDN_REQUIRE(check, holds, ...)           \
    do {                                         \
        if (!(holds)) (check).fail(__VA_ARGS__); \
    } while (false)

// Whether kernels compute with the tensor: it is on CUDA, or the call is explained.
inline bool on_gpu(const Tensor& x) {
    return x.is_cuda() || explaining();
}
// The memory of a tensor that the operator allocated; in an explained call, a pointer that is null only if a GPU's would be.
void* memory_of(const Tensor& tensor);

// The device of `view`, and torch's current stream there; in an explained call, the stand-in device.
Target target_of(const char* function, const View& view);

// Makes a device current for its lifetime, if it is not. Does nothing for the stand-in device of an explained call.
class DeviceScope {
  public:
    explicit DeviceScope(int ordinal);
    ~DeviceScope();
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

  private:
    DeviceGuardHandle guard_ = nullptr;
};

inline Rows rows_of(const View& view) {  // (batch, token, head, d) or (token, head, d)
    const int lead = view.rank - 3;
    return {view.data, lead ? view.stride(0) : 0, view.stride(lead), view.stride(lead + 1)};
}
inline Tagged tagged(const View& view) {
    return view.defined() ? Tagged{view.data, *dtype_of(view)} : Tagged{};
}
inline Scalars scalars_of(const View& view) {  // (batch, token, head) or (token, head)
    const int lead = view.rank - 2;
    return {tagged(view), lead ? view.stride(0) : 0, view.stride(lead), view.stride(lead + 1)};
}

}  // namespace gdn_cuda
