// transpose_to_mn_major and chunk_local_cumsum_bf16: gates as the pieces of the chunked form take them.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "../jit_kernels/impls/gdn/chunk_cumsum.hpp"
#include "../jit_kernels/impls/gdn/mn_major.hpp"
#include "gdn.hpp"
#include "gdn_checks.hpp"
#include "register.hpp"

namespace gdn_cuda::gdn {
namespace {

struct PreparedMnMajor {
    View input;
    int64_t matrices = 1, padded_rows = 0;
    int element_bytes = 0;
    MnMajorArgs args{};
};

PreparedMnMajor prepare_mn_major(const Tensor& input, int64_t alignment) {
    const Checks check{"transpose_to_mn_major"};
    PreparedMnMajor prepared{.input = View(input)};
    const View& view = prepared.input;
    const int leading = view.rank - 2;
    GDN_REQUIRE(check, leading >= 0 && leading <= MnMajorArgs::kMaxLeading, "input",
                fmt::format("rank 2 to {}", 2 + MnMajorArgs::kMaxLeading), shape_text(view));
    prepared.element_bytes = bytes_of(check.dtype("input", view, {DType::f32, DType::bf16}));
    GDN_REQUIRE(check, alignment > 0 && alignment % prepared.element_bytes == 0, "alignment",
                fmt::format("a positive multiple of the element's {} bytes", prepared.element_bytes),
                fmt::format("{}", alignment));
    const int64_t unit = alignment / prepared.element_bytes, units = view.size(-2) / unit + (view.size(-2) % unit != 0);
    int64_t result_bytes = prepared.element_bytes;
    bool countable = !__builtin_mul_overflow(units, unit, &prepared.padded_rows);
    for (int d = 0; d < leading; ++d) prepared.matrices *= view.size(d);
    for (const int64_t size : {prepared.padded_rows, view.size(-1), prepared.matrices})
        countable = countable && !__builtin_mul_overflow(result_bytes, size, &result_bytes);
    GDN_REQUIRE(check, countable, "alignment", "one with which the result has fewer than 2^63 bytes",
                fmt::format("{}", alignment));
    MnMajorArgs& args = prepared.args;
    args.input = view.data;
    args.leading_dims = leading;
    for (int d = 0; d < leading; ++d) {
        args.leading_size[d] = view.size(d);
        args.leading_stride[d] = view.stride(d);
    }
    args.rows = view.size(-2);
    args.columns = view.size(-1);
    args.padded_rows = prepared.padded_rows;
    args.row_stride = view.stride(-2);
    args.column_stride = view.stride(-1);
    check.grid("input", MnMajor::blocks(mn_major_config(prepared.element_bytes), args, prepared.matrices));
    return prepared;
}

struct PreparedCumsum {
    View input;
    DType io;
    int64_t chunks = 0;
    ChunkCumsumArgs args{};
};

PreparedCumsum prepare_cumsum(const Tensor& input, const Tensor& output, int64_t batch_size, int64_t seq_len, int64_t num_heads,
                              bool head_first, const OptionalTensor& cu_seqlens, const OptionalTensor& chunk_indices) {
    const Checks check{"chunk_local_cumsum_bf16"};
    const View in(input), out(output), lengths = view_of(cu_seqlens), hints = view_of(chunk_indices);
    const bool packed = lengths.defined();
    PreparedCumsum prepared{.input = in, .io = check.dtype("input", in, {DType::bf16, DType::f32})};
    int64_t tokens = seq_len;
    if (packed) {
        check.rank("input", in, 2, head_first ? "(H, N)" : "(N, H)");
        tokens = in.size(head_first ? 1 : 0);
        check_cu_seqlens(check, lengths, tokens, in, "input");
        GDN_REQUIRE(check, in.size(head_first ? 0 : 1) == num_heads, "input", fmt::format("{} heads", num_heads),
                    shape_text(in));
        GDN_REQUIRE(check, lengths.size(0) - 1 == batch_size, "cu_seqlens",
                    fmt::format("batch_size + 1 elements, with batch_size {}", batch_size), shape_text(lengths));
    } else if (head_first) {
        check.shape("input", in, {batch_size, num_heads, seq_len}, "(batch_size, num_heads, seq_len)");
    } else {
        check.shape("input", in, {batch_size, seq_len, num_heads}, "(batch_size, seq_len, num_heads)");
    }
    GDN_REQUIRE(check, out.rank == in.rank && std::equal(out.sizes, out.sizes + out.rank, in.sizes), "output",
                "the shape of input " + shape_text(in), shape_text(out));
    check.dtype("output", out, {DType::f32});
    check.device("output", out, in, "input");
    check.distinct("output", out);
    if (hints.defined()) {
        GDN_REQUIRE(check, packed, "chunk_indices", "None without cu_seqlens", "a tensor");
        check.dtype("chunk_indices", hints, {DType::i32, DType::i64});
        check.device("chunk_indices", hints, in, "input");
    }
    check.apart({{"output", out}}, {{"input", in}, {"cu_seqlens", lengths}, {"chunk_indices", hints}});

    ChunkCumsumArgs& args = prepared.args;
    const int token = head_first ? -1 : -2, head = head_first ? -2 : -1;
    args.input = in.data;
    args.output = static_cast<float*>(out.data);
    args.in_batch = packed ? 0 : in.stride(0);
    args.in_token = in.stride(token);
    args.in_head = in.stride(head);
    args.out_batch = packed ? 0 : out.stride(0);
    args.out_token = out.stride(token);
    args.out_head = out.stride(head);
    args.sequences = check.count("input", "sequences", batch_size);
    args.tokens = check.count("input", "tokens", tokens, kMaxTokens);
    args.heads = check.count("input", "heads", num_heads);
    args.cu_seqlens = tagged(lengths);
    prepared.chunks = packed ? tokens / kChunk + batch_size : batch_size * ceil_div(tokens, kChunk);
    check.grid("input", ChunkCumsum::blocks(chunk_cumsum_config(prepared.io), num_heads, prepared.chunks));
    return prepared;
}

}  // namespace

Tensor transpose_to_mn_major(const Tensor& input, int64_t alignment) {
    PreparedMnMajor prepared = prepare_mn_major(input, alignment);
    const View& view = prepared.input;
    std::vector<int64_t> shape(view.sizes, view.sizes + view.rank - 2);
    shape.insert(shape.end(), {view.size(-1), prepared.padded_rows});
    Tensor columns = torch::stable::new_empty(input, shape);
    prepared.args.output = columns.data_ptr();
    const DeviceScope scope(view.device_index);
    MnMajor::run(prepared.element_bytes, prepared.args, prepared.matrices, target_of("transpose_to_mn_major", view));
    return torch::stable::transpose(torch::stable::narrow(columns, -1, 0, view.size(-2)), -1, -2);
}

void chunk_local_cumsum_bf16(const Tensor& input, const Tensor& output, int64_t batch_size, int64_t seq_len, int64_t num_heads,
                             bool head_first, const OptionalTensor& cu_seqlens, const OptionalTensor& chunk_indices) {
    const PreparedCumsum prepared =
        prepare_cumsum(input, output, batch_size, seq_len, num_heads, head_first, cu_seqlens, chunk_indices);
    const DeviceScope scope(prepared.input.device_index);
    ChunkCumsum::run(prepared.io, prepared.args, prepared.chunks, target_of("chunk_local_cumsum_bf16", prepared.input));
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define_checked(m, "transpose_to_mn_major", "Tensor input, int alignment", "Tensor");
    define_checked(
        m, "chunk_local_cumsum_bf16",
        "Tensor input, Tensor(a!) output, int batch_size, int seq_len, int num_heads, bool head_first, Tensor? cu_seqlens, "
        "Tensor? chunk_indices",
        "()");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl("transpose_to_mn_major", TORCH_BOX(&transpose_to_mn_major));
    m.impl("chunk_local_cumsum_bf16", TORCH_BOX(&chunk_local_cumsum_bf16));
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl("validate_transpose_to_mn_major", TORCH_BOX(&OnlyCheck<prepare_mn_major>::run));
    m.impl("validate_chunk_local_cumsum_bf16", TORCH_BOX(&OnlyCheck<prepare_cumsum>::run));
}

}  // namespace gdn_cuda::gdn
