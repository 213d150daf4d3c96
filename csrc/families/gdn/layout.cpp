// transpose_to_mn_major and chunk_local_cumsum_bf16: prepare gates for the steps of the chunked form (chunk_steps.cpp).
#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/gdn.hpp>
#include <vector>

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
    GDN_REQUIRE(check, countable, "alignment", "an alignment for which the result has fewer than 2^63 bytes",
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
    const View in(x.input), out(x.output), lengths = view_of(x.cu_seqlens);
    const bool packed = lengths.defined();
    const int token = x.head_first ? -1 : -2, head = x.head_first ? -2 : -1;
    PreparedCumsum prepared{.input = in, .io = check.dtype("input", in, {DType::bf16, DType::f32})};
    if (packed)
        check.rank("input", in, 2, x.head_first ? "(H, N)" : "(N, H)");
    else
        check.rank("input", in, 3, x.head_first ? "(B, H, T)" : "(B, T, H)");
    const int64_t tokens = in.size(token), heads = in.size(head);
    if (packed) check_cu_seqlens(check, lengths, tokens, in, "input");
    const int64_t sequences = packed ? lengths.size(0) - 1 : in.size(0);
    GDN_REQUIRE(check, out.rank == in.rank && std::equal(out.sizes, out.sizes + out.rank, in.sizes), "output",
                "the shape of input " + shape_text(in), shape_text(out));
    check.dtype("output", out, {DType::f32});
    check.device("output", out, in, "input");
    check.distinct("output", out);
    check.apart({{"output", out}}, {{"input", in}, {"cu_seqlens", lengths}});

    ChunkCumsumArgs& args = prepared.args;
    args.input = in.data;
    args.output = static_cast<float*>(out.data);
    args.in_batch = packed ? 0 : in.stride(0);
    args.in_token = in.stride(token);
    args.in_head = in.stride(head);
    args.out_batch = packed ? 0 : out.stride(0);
    args.out_token = out.stride(token);
    args.out_head = out.stride(head);
    args.sequences = check.count("input", "sequences", sequences);
    args.tokens = check.count("input", "tokens", tokens, kMaxTokens);
    args.heads = check.count("input", "heads", heads);
    args.cu_seqlens = tagged(lengths);
    prepared.chunks = packed ? tokens / kChunk + sequences : sequences * ceil_div(tokens, kChunk);
    check.grid("input", ChunkCumsum::blocks(chunk_cumsum_config(prepared.io), heads, prepared.chunks));
    return prepared;
}

Tensor run_mn_major(const TransposeToMnMajor& x) {
    PreparedMnMajor prepared = prepare_mn_major(x);
    const View& view = prepared.input;
    std::vector<int64_t> shape(view.sizes, view.sizes + view.rank - 2);
    shape.insert(shape.end(), {view.size(-1), prepared.padded_rows});
    Tensor columns = new_tensor(x.input, shape);
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

GDN_FUNCTION(transpose_to_mn_major, TransposeToMnMajor, gdn::run_mn_major)
GDN_FUNCTION(chunk_local_cumsum_bf16, ChunkLocalCumsum, gdn::run_cumsum)

}  // namespace gdn_cuda
