// What a step of Gated Delta Net costs by how it converts int8 states, with a scale a row: microseconds at 32 heads of 128 ×
// 128.
//
//     nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a benchmarks/state_codes.cu -o state_codes && ./state_codes
//
// A state is S = scale · code, so the decay goes to the scale, and S k and S q are those of codes. "casts": I2F a code, F2IP
// two; "bytes": a code is put into the mantissa of 32768 by PRMT; "halves": two into those of 1024 as fp16, S k and S q by
// mma.sync, the update and the rounding by HFMA2. "read" steps store no state, as those between two writes of a ring (whose
// tokens are not added here). In place, slots in random order, replayed as a graph with the L2 emptied first. Then, of the same
// inputs, the relative RMS of outputs and of states beside those of "casts".
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

namespace {

using Size = long long;
constexpr int kHead = 128, kHeads = 32, kThreads = 128;

void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
}

struct Args {
    void* pool;          // (slots, heads, rows, columns)
    float* scales;       // (slots, heads, rows)
    const int* slots;    // (sequences,)
    const float *q, *k;  // (sequences, heads, columns); k has unit length
    const float *value, *decay, *beta;
    float* output;
};

enum class Codes { bf16, casts, bytes, halves };

template <int kLanes>
__device__ float sum(float x) {
#pragma unroll
    for (int i = kLanes / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
template <int kLanes>
__device__ float largest(float x) {
#pragma unroll
    for (int i = kLanes / 2; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
__device__ uint32_t packed(float a, float b, float c, float d) {
    uint32_t high, all;
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(__float2int_rn(d)), "r"(__float2int_rn(c)));
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(__float2int_rn(b)), "r"(__float2int_rn(a)), "r"(high));
    return all;
}
constexpr float kTiny = 1e-30f;

// Eight lanes a row of 128 columns, 16 a lane: gdn/decode's layout. Codes of "bytes" are biased by 128.
template <Codes kCodes, bool kWrites>
__device__ void lanes_step(const Args& a, int head, Size head_row, int first_row, int rows) {
    const int lane = threadIdx.x % 8;
    float q[16], k[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int column = kCodes == Codes::bf16 ? i / 8 * 64 + lane * 8 + i % 8 : lane * 16 + i;
        q[i] = a.q[head * kHead + column];
        k[i] = a.k[head * kHead + column];
    }
    float query_key = 0.f;
#pragma unroll
    for (int i = 0; i < 16; ++i) query_key = fmaf(q[i], k[i], query_key);
    query_key = sum<8>(query_key);
#pragma unroll 1
    for (int step = threadIdx.x / 8; step < rows; step += kThreads / 8) {
        const int row = first_row + step;
        float s[16], scale = a.decay[head];
        uint4* const at = static_cast<uint4*>(a.pool) + (head_row + row) * (kCodes == Codes::bf16 ? 16 : 8) + lane;
        if constexpr (kCodes == Codes::bf16) {
            const uint4 words[2] = {at[0], at[8]};
            const uint32_t* x = &words[0].x;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                s[2 * i] = __uint_as_float(x[i] << 16);
                s[2 * i + 1] = __uint_as_float(x[i] & 0xffff0000u);
            }
        } else {
            const uint4 words = *at;
            const uint32_t* x = &words.x;
            scale *= a.scales[head_row + row];
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                if constexpr (kCodes == Codes::bytes)
                    s[i] = __uint_as_float(__byte_perm(x[i / 4], 0x47000000u, 0x7404 | (i % 4) << 4)) - 32896.f;
                else
                    s[i] = static_cast<float>(static_cast<int8_t>(x[i / 4] >> 8 * (i % 4)));
            }
        }
        float state_key = 0.f, state_query = 0.f;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            state_key = fmaf(s[i], k[i], state_key);
            state_query = fmaf(s[i], q[i], state_query);
        }
        state_key = sum<8>(state_key) * scale;
        state_query = sum<8>(state_query) * scale;
        const float update = a.beta[head] * (a.value[head * kHead + row] - state_key);
        if (lane == 0) a.output[head * kHead + row] = fmaf(update, query_key, state_query);
        if constexpr (kWrites && kCodes == Codes::bf16) {
            uint4 words[2];
            uint32_t* x = &words[0].x;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const __nv_bfloat162 pair = __floats2bfloat162_rn(fmaf(update, k[2 * i], scale * s[2 * i]),
                                                                  fmaf(update, k[2 * i + 1], scale * s[2 * i + 1]));
                x[i] = reinterpret_cast<const uint32_t&>(pair);
            }
            at[0] = words[0];
            at[8] = words[1];
        } else if constexpr (kWrites) {
            const float along_key = __fdividef(update, fmaxf(scale, kTiny));
            float most = 0.f;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                s[i] = fmaf(along_key, k[i], s[i]);
                most = fmaxf(most, fabsf(s[i]));
            }
            most = fmaxf(largest<8>(most), kTiny);
            const float ratio = __fdividef(127.f, most);
            if (lane == 0) a.scales[head_row + row] = scale * most * (1.f / 127.f);
            uint4 words;
            uint32_t* x = &words.x;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[i] = packed(s[4 * i] * ratio, s[4 * i + 1] * ratio, s[4 * i + 2] * ratio, s[4 * i + 3] * ratio);
                if constexpr (kCodes == Codes::bytes) x[i] ^= 0x80808080u;
            }
            *at = words;
        }
    }
}

__device__ __half2 half2_of(uint32_t bits) {
    return reinterpret_cast<const __half2&>(bits);
}
__device__ uint32_t bits_of(__half2 x) {
    return reinterpret_cast<const uint32_t&>(x);
}

// A warp has 16 rows at a time, as rows of mma.sync's left operand; a lane has columns 16 t to 16 t + 15 and 64 more of rows g
// and g + 8. Column 0 of the right operand is k, column 1 is q. Codes are biased by 128.
template <bool kWrites>
__device__ void halves_step(const Args& a, int head, Size head_row, int first_row, int rows) {
    const int lane = threadIdx.x % 32, t = lane % 4, g = lane / 4;
    const auto column = [&](int i) { return i / 16 * 64 + t * 16 + i % 16; };
    __half2 right[16], key[16];
    float query_key = 0.f;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const float* k = a.k + head * kHead + column(2 * i);
        const float* q = a.q + head * kHead + column(2 * i);
        key[i] = __floats2half2_rn(k[0], k[1]);
        right[i] = g == 0 ? key[i] : g == 1 ? __floats2half2_rn(q[0], q[1]) : __float2half2_rn(0.f);
        query_key = fmaf(q[0], k[0], fmaf(q[1], k[1], query_key));
    }
    query_key = sum<4>(query_key);
    const __half2 bias = __float2half2_rn(1152.f), one = __float2half2_rn(1664.f);
#pragma unroll 1
    for (int step = threadIdx.x / 32 * 16; step < rows; step += kThreads / 2) {
        uint4 words[2][2];
        float scale[2], value[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = first_row + step + g + 8 * r;
            const uint4* at = static_cast<const uint4*>(a.pool) + (head_row + row) * 8 + t;
            words[r][0] = at[0];
            words[r][1] = at[4];
            scale[r] = a.scales[head_row + row] * a.decay[head];
            value[r] = a.value[head * kHead + row];
        }
        __half2 s[2][16];
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int i = 0; i < 16; ++i)
                s[r][i] = __hsub2(half2_of(__byte_perm((&words[r][0].x)[i / 2], 0x64646464u, i % 2 ? 0x4342 : 0x4140)), bias);
        float c[4] = {};
#pragma unroll
        for (int i = 0; i < 16; i += 2)
            asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                : "r"(bits_of(s[0][i])), "r"(bits_of(s[1][i])), "r"(bits_of(s[0][i + 1])), "r"(bits_of(s[1][i + 1])),
                  "r"(bits_of(right[i])), "r"(bits_of(right[i + 1])));
#pragma unroll
        for (int r = 0; r < 2; ++r) {  // lane t = 0 has the sums
            const int row = first_row + step + g + 8 * r;
            const float state_key = __shfl_sync(0xffffffffu, c[2 * r], lane & ~3) * scale[r];
            const float update = a.beta[head] * (value[r] - state_key);
            if (t == 0) a.output[head * kHead + row] = fmaf(update, query_key, c[2 * r + 1] * scale[r]);
            if constexpr (kWrites) {
                const __half2 along_key = __float2half2_rn(__fdividef(update, fmaxf(scale[r], kTiny)));
                __half2 both = __float2half2_rn(0.f);
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    s[r][i] = __hfma2(along_key, key[i], s[r][i]);
                    both = __hmax2(both, __habs2(s[r][i]));
                }
                const float most = largest<4>(fmaxf(__low2float(both), __high2float(both)));
                const __half ratio = __float2half(__fdividef(127.f, fmaxf(most, 0.01f)));
                if (t == 0) a.scales[head_row + row] = __fdividef(scale[r], __half2float(ratio));
                uint32_t x[8];
#pragma unroll
                for (int i = 0; i < 8; ++i)  // 1664 = 1536 + 128: the low byte is the biased code
                    x[i] = __byte_perm(bits_of(__hfma2(s[r][2 * i], __half2half2(ratio), one)),
                                       bits_of(__hfma2(s[r][2 * i + 1], __half2half2(ratio), one)), 0x6420);
                uint4* at = static_cast<uint4*>(a.pool) + (head_row + row) * 8 + t;
                at[0] = make_uint4(x[0], x[1], x[2], x[3]);
                at[4] = make_uint4(x[4], x[5], x[6], x[7]);
            }
        }
    }
}

template <Codes kCodes, bool kWrites>
__global__ void __launch_bounds__(kThreads) step(const __grid_constant__ Args a, int rows) {
    const int head = blockIdx.y * kHeads + blockIdx.x % kHeads, first_row = blockIdx.x / kHeads * rows;
    const Size head_row = (static_cast<Size>(a.slots[blockIdx.y]) * kHeads + blockIdx.x % kHeads) * kHead;
    if constexpr (kCodes == Codes::halves)
        halves_step<kWrites>(a, head, head_row, first_row, rows);
    else
        lanes_step<kCodes, kWrites>(a, head, head_row, first_row, rows);
}

using Kernel = void (*)(Args, int);
struct Variant {
    const char* name;
    Codes codes;
    Kernel writes, reads;
};
const Variant kVariants[] = {
    {"bf16", Codes::bf16, step<Codes::bf16, true>, step<Codes::bf16, false>},
    {"int8, casts", Codes::casts, step<Codes::casts, true>, step<Codes::casts, false>},
    {"int8, bytes", Codes::bytes, step<Codes::bytes, true>, step<Codes::bytes, false>},
    {"int8, halves", Codes::halves, step<Codes::halves, true>, step<Codes::halves, false>},
};

float microseconds(char* flush, Size flush_bytes, const auto& launch) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cudaEvent_t begin, end;
    check(cudaStreamCreate(&stream));
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    launch(stream);
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&replay, graph, 0));
    std::vector<float> times;
    for (int i = 0; i < 30; ++i) {
        check(cudaMemsetAsync(flush, i, flush_bytes, stream));
        check(cudaEventRecord(begin, stream));
        check(cudaGraphLaunch(replay, stream));
        check(cudaEventRecord(end, stream));
        check(cudaStreamSynchronize(stream));
        float milliseconds;
        check(cudaEventElapsedTime(&milliseconds, begin, end));
        times.push_back(milliseconds * 1000);
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
}

template <class T>
T* device(const std::vector<T>& from) {
    T* to;
    check(cudaMalloc(&to, from.size() * sizeof(T)));
    check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}
template <class T>
std::vector<T> host(const void* from, Size count) {
    std::vector<T> to(count);
    check(cudaMemcpy(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
}

double relative(const std::vector<float>& x, const std::vector<float>& truth) {
    double error = 0, size = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        error += (x[i] - truth[i]) * static_cast<double>(x[i] - truth[i]);
        size += truth[i] * static_cast<double>(truth[i]);
    }
    return std::sqrt(error / size);
}

}  // namespace

int main() {
    constexpr Size kFlush = Size{256} << 20;
    char* flush;
    check(cudaMalloc(&flush, kFlush));
    std::mt19937 random(0);
    std::normal_distribution<float> normal;
    std::printf("%-14s %4s %5s %9s %9s  (microseconds; rows a block)\n", "", "B", "rows", "in place", "read");
    for (const int batch : {64, 256}) {
        const Size rows = static_cast<Size>(batch) * kHeads * kHead;
        std::vector<float> q(rows), k(rows), value(rows), per_head(batch * kHeads, 0.99f), betas(batch * kHeads, 0.5f);
        for (Size i = 0; i < rows; i += kHead) {
            float norm = 0;
            for (Size j = i; j < i + kHead; ++j) {
                q[j] = normal(random) * 0.088f;
                value[j] = normal(random);
                k[j] = normal(random);
                norm += k[j] * k[j];
            }
            for (Size j = i; j < i + kHead; ++j) k[j] /= std::sqrt(norm);
        }
        std::vector<int> slots(batch);
        std::iota(slots.begin(), slots.end(), 0);
        std::ranges::shuffle(slots, random);
        Args a{.slots = device(slots),
               .q = device(q),
               .k = device(k),
               .value = device(value),
               .decay = device(per_head),
               .beta = device(betas)};
        check(cudaMalloc(&a.output, rows * sizeof(float)));
        check(cudaMalloc(&a.pool, rows * kHead * 2));
        check(cudaMalloc(&a.scales, rows * sizeof(float)));
        std::vector<float> outputs, states;
        for (const Variant& variant : kVariants) {
            const auto launch = [&](Kernel kernel, int block_rows, cudaStream_t stream) {
                kernel<<<dim3(kHeads * kHead / block_rows, batch), kThreads, 0, stream>>>(a, block_rows);
                check(cudaGetLastError());
            };
            const bool biased = variant.codes == Codes::bytes || variant.codes == Codes::halves;
            check(cudaMemset(a.pool, biased ? 0x80 : 0, rows * kHead * 2));
            check(cudaMemset(a.scales, 0, rows * sizeof(float)));
            std::vector<float> ones(rows, 0.01f);
            check(cudaMemcpy(a.scales, ones.data(), rows * sizeof(float), cudaMemcpyHostToDevice));
            for (int i = 0; i < 4; ++i) launch(variant.writes, 64, nullptr);
            const auto found = host<float>(a.output, rows), scales = host<float>(a.scales, rows);
            std::vector<float> state(kHead * kHead);
            if (variant.codes == Codes::bf16) {
                const auto bits = host<uint16_t>(a.pool, kHead * kHead);
                for (int i = 0; i < kHead * kHead; ++i) {
                    const uint32_t word = static_cast<uint32_t>(bits[i]) << 16;
                    state[i] = reinterpret_cast<const float&>(word);
                }
            } else {
                const auto codes = host<uint8_t>(a.pool, kHead * kHead);
                for (int i = 0; i < kHead * kHead; ++i)
                    state[i] = scales[i / kHead] * (biased ? codes[i] - 128 : static_cast<int8_t>(codes[i]));
            }
            if (variant.codes == Codes::casts) outputs = found, states = state;
            for (const int block_rows : {16, 64, 128}) {
                if (variant.codes == Codes::halves && block_rows < 64) continue;
                std::printf("%-14s %4d %5d", variant.name, batch, block_rows);
                for (const Kernel kernel : {variant.writes, variant.reads})
                    std::printf(" %9.1f", microseconds(flush, kFlush, [&](cudaStream_t s) { launch(kernel, block_rows, s); }));
                if (!outputs.empty() && biased)
                    std::printf("  outputs %.1e, state of a head %.1e from those of casts", relative(found, outputs),
                                relative(state, states));
                std::printf("\n");
            }
        }
        for (const void* each :
             {static_cast<const void*>(a.slots), static_cast<const void*>(a.q), static_cast<const void*>(a.k),
              static_cast<const void*>(a.value), static_cast<const void*>(a.decay), static_cast<const void*>(a.beta),
              static_cast<const void*>(a.output), static_cast<const void*>(a.pool), static_cast<const void*>(a.scales)})
            check(cudaFree(const_cast<void*>(each)));
    }
}
