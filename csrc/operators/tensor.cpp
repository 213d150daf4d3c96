#include "tensor.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <span>
#include <stdexcept>

#include "../jit/device.hpp"
#include "float64.hpp"

namespace gdn_cuda {
namespace {

std::string join(std::span<const int64_t> sizes) {
    std::string text;
    for (const int64_t size : sizes) text += fmt::format("{}{}", text.empty() ? "" : ", ", size);
    return fmt::format("({}{})", text, sizes.size() == 1 ? "," : "");
}

// Only CUDA builds of torch have this symbol, in a library that torch loads with local visibility.
using CurrentStream = AOTITorchError (*)(int32_t, void**);
CurrentStream find_current_stream() {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_NOW);
    return reinterpret_cast<CurrentStream>(
        dlsym(library != nullptr ? library : RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream"));
}

// Stand-ins for addresses of meta tensors: the caller's, and those that an operator allocated. They are aligned for every
// kernel, not null, and different, so that a caller's state is not mistaken for one that is updated in place.
constexpr uintptr_t kGiven = uintptr_t{1} << 60, kAllocated = uintptr_t{2} << 60;

struct Named {
    ScalarType type;
    const char* name;
    std::optional<DType> ours = {};
};
constexpr Named kNamed[] = {{ScalarType::Float, "float32", DType::f32},
                            {ScalarType::BFloat16, "bfloat16", DType::bf16},
                            {ScalarType::Half, "float16", DType::f16},
                            {ScalarType::Int, "int32", DType::i32},
                            {ScalarType::Long, "int64", DType::i64},
                            {ScalarType::Double, "float64", DType::f64},
                            {ScalarType::ComplexFloat, "complex64", DType::c64},
                            {ScalarType::ComplexDouble, "complex128", DType::c128},
                            {ScalarType::ComplexHalf, "complex32"},
                            {ScalarType::Bool, "bool"},
                            {ScalarType::Byte, "uint8"},
                            {ScalarType::Char, "int8", DType::i8},
                            {ScalarType::Short, "int16"}};

bool is_one_of(const View& view, std::initializer_list<DType> allowed) {
    const auto type = dtype_of(view);
    return type && std::ranges::find(allowed, *type) != allowed.end();
}
std::string names_of(std::initializer_list<DType> types) {
    std::string names;
    for (const DType each : types)
        names += fmt::format("{}{}", names.empty() ? "" : " or ", std::ranges::find(kNamed, each, &Named::ours)->name);
    return names;
}

}  // namespace

std::string device_text(const View& view) {
    if (view.is_cuda()) return fmt::format("cuda:{}", view.device_index);
    return view.is_cpu() ? "cpu" : "a device that is neither cpu nor cuda";
}

View::View(const Tensor& tensor) {
    if (!tensor.defined()) throw std::invalid_argument("expected a tensor, got None");
    const AtenTensorHandle handle = tensor.get();
    int64_t dims = 0;
    int64_t *size_pointer = nullptr, *stride_pointer = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &data));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dims));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &size_pointer));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &stride_pointer));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device_type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device_index));
    static const int64_t scalar = 0;  // torch may return null pointers for rank 0
    rank = static_cast<int>(dims);
    sizes = size_pointer != nullptr ? size_pointer : &scalar;
    strides = stride_pointer != nullptr ? stride_pointer : &scalar;
    if (device_type == torch_numbers.meta && numel() > 0) [[unlikely]]  // torch gives the offset into the storage
        data = reinterpret_cast<void*>(kGiven + reinterpret_cast<uintptr_t>(data));
}

void* memory_of(const Tensor& tensor) {
    void* const data = tensor.data_ptr();
    if (data != nullptr || !explaining() || tensor.numel() == 0) [[likely]]
        return data;
    return reinterpret_cast<void*>(kAllocated);
}

int64_t View::numel() const {
    int64_t count = 1;
    for (int d = 0; d < rank; ++d) count *= sizes[d];
    return count;
}

bool View::same_shape(std::initializer_list<int64_t> shape) const {
    return static_cast<size_t>(rank) == shape.size() && std::equal(shape.begin(), shape.end(), sizes);
}

bool View::contiguous_tail(int dims) const {
    if (numel() == 0) return true;
    int64_t expected = 1;
    for (int d = rank - 1; d >= rank - dims; --d) {
        if (sizes[d] > 1 && strides[d] != expected) return false;
        expected *= sizes[d];
    }
    return true;
}

bool View::aligned16() const {
    const auto type = dtype_of(*this);
    const int64_t bytes = type ? bytes_of(*type) : 1;
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0) return false;
    for (int d = 0; d + 1 < rank; ++d)
        if (stride(d) * bytes % 16 != 0) return false;
    return true;
}

View view_of(const OptionalTensor& tensor) {
    return tensor ? View(*tensor) : View();
}

std::string dtype_name(ScalarType type) {
    const auto* const found = std::ranges::find(kNamed, type, &Named::type);
    return found != std::end(kNamed) ? found->name : torch::headeronly::toString(type);
}
std::string dtype_name(const View& view) {
    return dtype_name(static_cast<ScalarType>(view.dtype));
}

std::string shape_text(const View& view) {
    return join({view.sizes, static_cast<size_t>(view.rank)});
}
std::string shape_text(std::initializer_list<int64_t> shape) {
    return join({shape.begin(), shape.size()});
}
std::string stride_text(const View& view) {
    return "strides " + join({view.strides, static_cast<size_t>(view.rank)});
}

void fail(const char* function, const char* argument, const std::string& expected, const std::string& got) {
    throw std::invalid_argument(fmt::format("{}: {}: expected {}, got {}", function, argument, expected, got));
}

void Checks::rank(const char* argument, const View& view, int rank, const char* layout) const {
    if (view.rank != rank) fail(argument, fmt::format("rank {} {}", rank, layout), shape_text(view));
}

void Checks::shape(const char* argument, const View& view, std::initializer_list<int64_t> shape, const char* layout) const {
    if (!view.same_shape(shape)) fail(argument, fmt::format("{} = {}", layout, shape_text(shape)), shape_text(view));
}

DType Checks::dtype(const char* argument, const View& view, std::initializer_list<DType> allowed) const {
    if (is_one_of(view, allowed)) return *dtype_of(view);
    fail(argument, names_of(allowed), dtype_name(view));
}

DType Checks::number(const char* argument, const View& view) const {
    return dtype_or_f64(*this, argument, view, {DType::f32, DType::bf16, DType::f16});
}

DType dtype_or_f64(const Checks& check, const char* argument, const View& view, std::initializer_list<DType> allowed) {
    const bool is_f64 = view.dtype == torch_numbers.f64, by_kernel = view.is_cuda() || explaining();
    if (is_f64 && !by_kernel) return DType::f64;
    if (is_one_of(view, allowed)) return *dtype_of(view);
    const char* const more = is_f64 ? " on CUDA, as float64 is for CPU tensors" : by_kernel ? "" : " or float64";
    check.fail(argument, names_of(allowed) + more, dtype_name(view));
}

DType dtype_beside(const Checks& check, const char* argument, const View& view, DType io,
                   std::initializer_list<DType> allowed) {
    return io == DType::f64 ? dtype_or_f64(check, argument, view, allowed) : check.dtype(argument, view, allowed);
}

void Checks::device(const char* argument, const View& view, const View& as, const char* as_name) const {
    if (view.device_type != as.device_type || view.device_index != as.device_index)
        fail(argument, fmt::format("{}, the device of {}", device_text(as), as_name), device_text(view));
}

void Checks::last_contiguous(const char* argument, const View& view) const {
    if (view.size(-1) > 1 && view.stride(-1) != 1 && view.numel() > 0)
        fail(argument, "a contiguous last dimension", fmt::format("stride {}", view.stride(-1)));
}

void Checks::distinct(const char* argument, const View& view) const {
    GDN_REQUIRE(*this, !overlaps_itself(view.sizes, view.strides, view.rank), argument,
                "memory of its own for every element, because it is written",
                fmt::format("shape {} with {}, which overlaps itself", shape_text(view), stride_text(view)));
}

void Checks::apart(std::initializer_list<Memory> written, std::initializer_list<Memory> read) const {
    const auto check = [&](const Memory& mine, const Memory& other) {
        GDN_REQUIRE(*this, !share_memory(mine, other), mine.argument,
                    fmt::format("memory that does not overlap that of {}", other.argument), "memory that overlaps it");
    };
    for (const Memory& mine : written) {
        if (mine.begin == mine.end) continue;  // most optional arguments
        for (const Memory& other : read) check(mine, other);
        for (const Memory* before = written.begin(); before != &mine; ++before) check(mine, *before);
    }
}

int Checks::count(const char* argument, const char* unit, int64_t value, int64_t most) const {
    GDN_REQUIRE(*this, value >= 0 && value <= most, argument, fmt::format("at most {} {}", most, unit),
                fmt::format("{}", value));
    return static_cast<int>(value);
}

void Checks::grid(const char* argument, const Blocks& blocks) const {
    GDN_REQUIRE(*this, fits_grid(blocks), argument, fmt::format("sizes of at most {}", grid_text(kMostBlocks)),
                grid_text(blocks));
}

Target target_of(const char* function, const View& view) {
    if (!view.is_cuda()) [[unlikely]] {
        if (explaining()) return {jit::kStandIn, nullptr};
        throw std::runtime_error(fmt::format("{}: expected CUDA tensors, got tensors on {}", function, device_text(view)));
    }
    static const CurrentStream current_stream = find_current_stream();
    if (current_stream == nullptr)
        throw std::runtime_error(fmt::format("{}: expected a build of torch with CUDA, got one without", function));
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(current_stream(view.device_index, &stream));
    return {view.device_index, static_cast<CUstream>(stream)};
}

DeviceScope::DeviceScope(int ordinal) {
    if (ordinal == jit::kStandIn) [[unlikely]]
        return;
    int32_t current = -1;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_device_index(&current));
    if (current != ordinal) TORCH_ERROR_CODE_CHECK(aoti_torch_create_device_guard(ordinal, &guard_));
}

DeviceScope::~DeviceScope() {
    if (guard_ != nullptr) aoti_torch_delete_device_guard(guard_);
}

}  // namespace gdn_cuda
