// The reversed chain (gdn/backward_chain/values.cuh) as a kernel for test_backward_chain.py. No operator has it yet.
#include <gdn_cuda/kernels/chunked/run.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/values.cuh>

namespace chain {

using namespace gdn_cuda;
using namespace gdn_cuda::gdn;

constexpr ChunkedConfig kConfig{
    .head_k = 128, .value_groups = 1, .inverse_groups = 2, .stages = 3, .io = DType::bf16, .direction = Direction::backward};

// query, key: (B, T, Hk, dk); gradients of outputs and values: (B, T, Hv, dv); gate, beta: (B, T, Hv); all contiguous.
struct Args {
    TensorMap query, key, output_gradient, value_gradient;
    void* value_gradient_data;
    const float *gate, *beta;
    const float* final_gradient;  // of states (sequences, Hv, dv, dk); or nullptr
    float* initial_gradient;
    void* cached;           // CachedChunk (Hv, row tile, chunk)
    const int* cu_seqlens;  // or nullptr
    i64 chunks;             // of all sequences
    int sequences, tokens, heads, heads_per_key, dk, dv;
    float scale;
    int qk_norm;
};

__device__ ChunkedArgs chunked_args(const Args& args) {
    const i64 batch = args.cu_seqlens != nullptr ? 0 : args.tokens, row = static_cast<i64>(args.heads) * args.dv;
    const auto scalars = [&](const float* data) { return Scalars{{data, DType::f32}, batch * args.heads, args.heads, 1}; };
    const i64 state = row * args.dk;
    ChunkedArgs chunked{};
    chunked.query = args.query;
    chunked.key = args.key;
    chunked.value = args.output_gradient;
    chunked.output = args.value_gradient;
    chunked.state = DType::f32;
    chunked.segments = 1;
    chunked.summaries.cached = args.cached;
    chunked.summaries.chunks = args.chunks;
    GdnCall& call = chunked.call;
    call.output = {args.value_gradient_data, batch * row, row, args.dv};
    call.gate = scalars(args.gate);
    call.beta = scalars(args.beta);
    call.sequences = args.sequences;
    call.tokens = args.tokens;
    call.heads = args.heads;
    call.heads_per_key = args.heads_per_key;
    call.dk = args.dk;
    call.dv = call.values = call.outputs = args.dv;
    call.scale = args.scale;
    call.qk_norm = args.qk_norm != 0;
    call.cu_seqlens = {args.cu_seqlens, DType::i32};
    call.null_slot = -1;
    call.initial = {.data = const_cast<float*>(args.final_gradient), .slot = state};
    call.last = {.data = args.initial_gradient, .slot = state};
    return chunked;
}

__global__ void backward(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const ChunkedArgs chunked = chunked_args(args);
    run_block<GdnBackwardRole>(*reinterpret_cast<ChunkedPlan<kConfig>*>(memory), chunked);
}

static const emulator::Kernel<backward> registered{"chain/backward", ""};

// For the host side of the test.
extern "C" __attribute__((visibility("default"))) int chain_shared_bytes() {
    return sizeof(ChunkedPlan<kConfig>);
}
extern "C" __attribute__((visibility("default"))) int chain_threads() {
    return kConfig.threads();
}
extern "C" __attribute__((visibility("default"))) int chain_cached_bytes() {
    return sizeof(CachedChunk<kConfig>);
}

}  // namespace chain
