}  // namespace
}  // namespace gdn_cuda::scan
#include <barrier>
#include <thread>
#include <memory>
#include <torch/csrc/stable/library.h>
thread_local Dim threadIdx; Dim blockIdx;
static std::barrier<> all_barrier(128);
static std::unique_ptr<std::barrier<>> warps[4];
static float lanes_of[128];
void __syncthreads(){ all_barrier.arrive_and_wait(); }
void __syncwarp(){ warps[threadIdx.x/32]->arrive_and_wait(); }
float __shfl_xor_sync(unsigned, float x, int step){ lanes_of[threadIdx.x]=x; __syncwarp(); float y=lanes_of[threadIdx.x^step]; __syncwarp(); return y; }
namespace gdn_cuda::scan { alignas(16) unsigned char memory[1<<17]; }
#include <gdn_cuda/kernels/scan/selective_step.cuh>
namespace gdn_cuda::scan { namespace {
template <SelectiveStepConfig kConfig>
void emulate(const SelectiveStepArgs& args, const Blocks& blocks) {
    for (auto& w : warps) if (!w) w = std::make_unique<std::barrier<>>(32);
    std::vector<std::thread> threads;
    for (int t = 0; t < 128; ++t) threads.emplace_back([&, t] {
        threadIdx = {t,0,0};
        for (int z = 0; z < blocks[2]; ++z) for (int y = 0; y < blocks[1]; ++y) for (int x = 0; x < blocks[0]; ++x) {
            if (t == 0) { blockIdx = {x,y,z}; std::memset(memory, 0xff, sizeof memory); }
            __syncthreads();
            selective_step<kConfig>(args);
            __syncthreads();
        }
    });
    for (auto& t : threads) t.join();
}
template <size_t... k>
void dispatch(const SelectiveStepConfig& c, const SelectiveStepArgs& args, const Blocks& blocks, std::index_sequence<k...>) {
    bool found = false;
    ((c == SelectiveStep::kConfigurations[k] ? (found = true, emulate<SelectiveStep::kConfigurations[k]>(args, blocks)) : void()), ...);
    if (!found) std::abort();
}
void run(const Tensor& state, const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C, const OptionalTensor& D, const OptionalTensor& z, const OptionalTensor& dt_bias, const OptionalTensor& delta_a, const OptionalTensor& sbi, const OptionalTensor& acc, const OptionalTensor& steps, const OptionalTensor& step_slots, bool softplus, int64_t disc, const Tensor& out, int64_t sms) {
    SelectiveStateUpdate a{.state=state,.x=x,.dt=dt,.A=A,.B=B,.C=C,.D=D,.z=z,.dt_bias=dt_bias,.delta_a=delta_a,.state_batch_indices=sbi,.num_accepted_tokens=acc,.step_states=steps,.step_slots=step_slots,.dt_softplus=softplus,.discretization=Discretization(disc)};
    a.out = out;
    PreparedStep p = prepare_step(a);
    jit::DeviceTraits device; device.multiprocessors = int(sms);
    auto choice = selective_step_choice(p.problem, device);
    p.args.lane_bits = std::countr_zero((unsigned)choice.lanes); p.args.block_sequences = choice.block_sequences;
    if (p.problem.sequences == 0 || p.problem.tokens == 0 || p.problem.groups == 0 || p.problem.group_rows == 0) return;
    dispatch(choice.config, p.args, selective_step_blocks(p.problem, choice), std::make_index_sequence<SelectiveStep::kConfigurations.size()>());
}
STABLE_TORCH_LIBRARY_FRAGMENT(gdn_emu, m) { m.def("step(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, Tensor? delta_a, Tensor? sbi, Tensor? acc, Tensor(b!)? steps, Tensor? step_slots, bool softplus, int disc, Tensor(c!) out, int sms) -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(gdn_emu, CompositeExplicitAutograd, m) { m.impl("step", TORCH_BOX(&run)); }
}}
