// Chooses the kernel for calls whose sequences go chunk by chunk.
#include "by_chunk.hpp"

#include <cstdlib>

#include "chunk_inputs.hpp"
#include "kda_chunks.hpp"
#include "kda_mma.hpp"
#include "prefill_mma.hpp"

namespace gdn_cuda::gdn {

PrefillTensors tensors_of(const Prepared& prepared) {
    const Sequences& sequences = prepared.sequences;
    const GdnCall& args = prepared.args;
    const auto tiled = [&](const Rows& rows, int64_t heads, int64_t d) {
        return jit::TiledTensor{rows, sequences.packed() ? 1 : sequences.count, sequences.tokens, heads, d};
    };
    return {tiled(args.query, sequences.key_heads, sequences.dk),
            tiled(args.key, sequences.key_heads, sequences.dk),
            tiled(args.value, sequences.value_heads, sequences.dv),
            tiled(args.output, sequences.value_heads, sequences.dv),
            args.last.data != nullptr && args.initial.data == args.last.data,
            nullptr,
            nullptr};
}

namespace {

// With a gate for every channel of the key. rows_fit: as for prefill_kernel.
KernelChoice choose_kernel_of_channels(const Prepared& prepared, const PrefillTensors& tensors, bool rows_fit,
                                       const Target& target) {
    const WantedPrefill wanted = wanted_prefill();
    const int capability = jit::device_traits(target.ordinal).capability;
    const bool by_hopper = fits_kda_chunks(prepared, tensors), fits = rows_fit && has_paired_channel_gates(prepared);
    const PrefillKernel kernel = channel_kernel(fits, by_hopper, capability, wanted);
    return {kernel, target.is_explained() ? explain_channel_kernel(fits, by_hopper, capability, wanted) : ""};
}

}  // namespace

KernelChoice choose_kernel(const Prepared& prepared, const PrefillTensors& tensors, const Target& target) {
    const Sequences& sequences = prepared.sequences;
    const GdnCall& args = prepared.args;
    const bool tiles = jit::can_tile(tensors.query) && jit::can_tile(tensors.key) && jit::can_tile(tensors.value) &&
                       jit::can_tile(tensors.output);
    const auto near = [](const Scalars& scalars) { return std::abs(scalars.token) <= kLongestScalarStride; };
    const bool rows_fit = tiles && prepared.aligned && sequences.tokens > 0 && sequences.count <= kMaxGridYZ,
               scalars_near = !has_chunk_gates(args) || (near(args.gate) && near(args.beta));
    if (args.channels.form != ChannelGate::none) return choose_kernel_of_channels(prepared, tensors, rows_fit, target);
    const int capability = jit::device_traits(target.ordinal).capability;
    const WantedPrefill wanted = wanted_prefill();
    // gdn/prefill stores outputs of all rows, and gdn/summary, which stores none, takes shorter keys.
    const int longest = args.outputs > 0 ? kPrefillLongestKey : kLongestNarrowKey;
    return {prefill_kernel(rows_fit, scalars_near, args.dk, capability, wanted, longest),
            target.is_explained() ? explain_prefill_kernel(rows_fit, scalars_near, args.dk, capability, wanted, longest) : ""};
}

void run_by_chunk(Prepared& prepared, ChunkInputs& inputs, bool deterministic, const Tensor& like, const char* function,
                  const Target& target) {
    const Sequences& sequences = prepared.sequences;
    const GdnCall& args = prepared.args;
    PrefillTensors tensors = tensors_of(prepared);
    auto problem = problem_of<ChunkedProblem>(prepared, sequences.mean_tokens());
    problem.deterministic = deterministic;
    problem.packed_tokens = sequences.packed() ? sequences.tokens : 0;
    OptionalTensor workspace = {};
    const KernelChoice choice = choose_kernel(prepared, tensors, target);
    if (target.is_explained()) [[unlikely]]
        remark(choice.why);
    const bool by_head = choice.kernel == PrefillKernel::wgmma || choice.kernel == PrefillKernel::mma;
    if (by_head && !has_chunk_gates(args)) inputs.convert_gates();
    switch (choice.kernel) {
        case PrefillKernel::wgmma: {
            const ChunkedSchedule schedule = Prefill::schedule(problem, target);
            // Whole tiles, so that the workspace starts aligned in tests that end it at a guard page.
            constexpr i64 kUnit = alignof(SwizzledTile) / sizeof(float);
            const i64 counts = schedule.counts(tensors.in_place);
            if (const i64 words = ceil_div(schedule.workspace() + counts, kUnit) * kUnit; words > 0) {
                workspace = new_tensor(like, {words}, ScalarType::Float);
                tensors.workspace = static_cast<float*>(memory_of(*workspace));
                tensors.counts = reinterpret_cast<unsigned*>(tensors.workspace + schedule.workspace());
                jit::clear_words(tensors.counts, static_cast<size_t>(counts), target.ordinal, target.stream);
            }
            return Prefill::run(problem, schedule, args, tensors, target);
        }
        case PrefillKernel::mma:
            return PrefillMma::run(problem, args, target);
        case PrefillKernel::channels: {
            const KdaSplit split = kda_split(prepared, deterministic, target);
            const KdaWorkspaceSize size = kda_workspace(prepared, split);
            // Whole tiles, as above.
            const i64 tiles = ceil_div(size.bytes(), i64{sizeof(SwizzledTile)});
            workspace = new_tensor(like, {tiles * i64{sizeof(SwizzledTile) / sizeof(float)}}, ScalarType::Float);
            return run_kda_chunks(prepared, tensors, size.at(memory_of(*workspace)), split, target);
        }
        case PrefillKernel::channels_mma:
            return KdaMma::run(problem, args, target);
        case PrefillKernel::recurrent:
            return run_by_token(prepared, function);
    }
}

}  // namespace gdn_cuda::gdn
