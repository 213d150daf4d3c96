// transpose_to_mn_major and chunk_local_cumsum_bf16: prepare gates for the pieces of the chunked form (pieces.cpp).
#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/gdn.hpp>

#include "../../operators/operator.hpp"
#include "checks.hpp"
#include "chunk_cumsum.hpp"
#include "mn_major.hpp"

namespace gdn_cuda::gdn {
namespace {

struct PreparedMnMajor {
    View input;
    int64_t matrices = 1, padded_rows = 0;
    int element_bytes = 0;
    MnMajorArgs args{};
};

PreparedMnMajor prepare_mn_major(const TransposeToMnMajor& x) {
    const Checks check{x.name};
    const int64_t alignment = x.alignment;
    PreparedMnMajor prepared{.input = View(x.input)};
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

PreparedCumsum prepare_cumsum(const ChunkLocalCumsum& x) {
    const Checks check{x.name};
    const View in(x.input), out(x.output), lengths = view_of(x.cu_seqlens), hints = view_of(x.chunk_indices);
    const bool packed = lengths.defined();
    PreparedCumsum prepared{.input = in, .io = check.dtype("input", in, {DType::bf16, DType::f32})};
    int64_t tokens = x.seq_len;
    if (packed) {
        check.rank("input", in, 2, x.head_first ? "(H, N)" : "(N, H)");
        tokens = in.size(x.head_first ? 1 : 0);
        check_cu_seqlens(check, lengths, tokens, in, "input");
        GDN_REQUIRE(check, in.size(x.head_first ? 0 : 1) == x.num_heads, "input", fmt::format("{} heads", x.num_heads),
                    shape_text(in));
        GDN_REQUIRE(check, lengths.size(0) - 1 == x.batch_size, "cu_seqlens",
                    fmt::format("batch_size + 1 elements, with batch_size {}", x.batch_size), shape_text(lengths));
    } else if (x.head_first) {
        check.shape("input", in, {x.batch_size, x.num_heads, x.seq_len}, "(batch_size, num_heads, seq_len)");
    } else {
        check.shape("input", in, {x.batch_size, x.seq_len, x.num_heads}, "(batch_size, seq_len, num_heads)");
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
    const int token = x.head_first ? -1 : -2, head = x.head_first ? -2 : -1;
    args.input = in.data;
    args.output = static_cast<float*>(out.data);
    args.in_batch = packed ? 0 : in.stride(0);
    args.in_token = in.stride(token);
    args.in_head = in.stride(head);
    args.out_batch = packed ? 0 : out.stride(0);
    args.out_token = out.stride(token);
    args.out_head = out.stride(head);
    args.sequences = check.count("input", "sequences", x.batch_size);
    args.tokens = check.count("input", "tokens", tokens, kMaxTokens);
    args.heads = check.count("input", "heads", x.num_heads);
    args.cu_seqlens = tagged(lengths);
    prepared.chunks = packed ? tokens / kChunk + x.batch_size : x.batch_size * ceil_div(tokens, kChunk);
    check.grid("input", ChunkCumsum::blocks(chunk_cumsum_config(prepared.io), x.num_heads, prepared.chunks));
    return prepared;
}

Tensor run_mn_major(const TransposeToMnMajor& x) {
    PreparedMnMajor prepared = prepare_mn_major(x);
    const View& view = prepared.input;
    std::vector<int64_t> shape(view.sizes, view.sizes + view.rank - 2);
    shape.insert(shape.end(), {view.size(-1), prepared.padded_rows});
    Tensor columns = torch::stable::new_empty(x.input, shape);
    prepared.args.output = columns.data_ptr();
    const DeviceScope scope(view.device_index);
    MnMajor::run(prepared.element_bytes, prepared.args, prepared.matrices, target_of(x.name, view));
    return torch::stable::transpose(torch::stable::narrow(columns, -1, 0, view.size(-2)), -1, -2);
}

void run_cumsum(const ChunkLocalCumsum& x) {
    const PreparedCumsum prepared = prepare_cumsum(x);
    const DeviceScope scope(prepared.input.device_index);
    ChunkCumsum::run(prepared.io, prepared.args, prepared.chunks, target_of(x.name, prepared.input));
}

GDN_REGISTER(TransposeToMnMajor, prepare_mn_major, run_mn_major)
GDN_REGISTER(ChunkLocalCumsum, prepare_cumsum, run_cumsum)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

Tensor transpose_to_mn_major(const TransposeToMnMajor& x) {
    require_given(x.name, x);
    return call<TransposeToMnMajor, gdn::run_mn_major>(x);
}

void chunk_local_cumsum_bf16(const ChunkLocalCumsum& x) {
    require_given(x.name, x);
    call<ChunkLocalCumsum, gdn::run_cumsum>(x);
}

}  // namespace gdn_cuda
