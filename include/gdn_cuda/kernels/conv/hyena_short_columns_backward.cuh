// conv/hyena_short_columns_backward: the same as conv/hyena_short_backward, channels contiguous in memory.
//
// A warp iterates over its tokens of 64 contiguous channels (32 from 9 taps on), four tokens a step (or eight). A lane has
// two channels or one, with u and dz of the last tokens in two windows in registers, and a sum per tap. A step computes the
// gradient of x2 at its own tokens, and those of x1 and v `delay` tokens earlier, because they need the dz that follows. Up
// to 8 taps x1 and v stay in registers until then; with more taps they are read again from the caches. The next step's loads
// are in flight while a step is computed.
//
// Shared memory, per warp: the taps of its channels, newest first, and the last values of u and dz, for tokens that are read
// one by one: those after the last whole step, and all tokens of tensors without aligned vectors.
//
// Bound: memory, as conv/hyena_short_backward: 77 % of an H200's memory bandwidth with 7 taps. The tokens on both sides of a
// warp's segment are read twice.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_short/backward_common.cuh>
#include <gdn_cuda/kernels/conv/hyena_short/columns_common.cuh>

namespace gdn_cuda::conv {

template <HyenaShortConfig kConfig>
struct HyenaShortColumnsBackward {
    using T = Storage<kConfig.io>;
    static constexpr HyenaShortBackwardColumns kColumns{kConfig};
    static constexpr int kChannels = kColumns.lane_channels(), kStep = kColumns.step(), kBefore = kConfig.taps - 1;
    static constexpr int kDelay = kColumns.delay();
    static constexpr bool kKeepsInputs = kColumns.has_few_taps();
    static constexpr int kKept = kKeepsInputs ? kDelay : 0;
    using Column = HyenaColumn<T, kChannels>;
    using Values = typename Column::Values;
    using Floats = Vector<float, kChannels, true>;
    using Shared = HyenaShortColumnsBackwardShared<kConfig, Floats>;

    const HyenaShortBackwardArgs& args;
    Shared& shared;  // the warp's; a lane reads only what it wrote
    const HyenaSegment& segment;
    const int channel;  // the lane's first
    const HyenaArgs& forward = args.forward;
    const int batch = segment.batch;
    float dtaps[kConfig.taps][kChannels] = {}, dbias[kChannels] = {}, bias[kChannels];
    Column to_x1 = column(args.dx1), to_x2 = column(args.dx2), to_v = column(args.dv);
    Column late_x1 = column(forward.x1), late_v = column(forward.v);  // at the tokens of to_x1 and to_v

    __device__ __forceinline__ Floats& tap(int lag) const { return shared.taps[lag][lane_of_warp()]; }
    __device__ __forceinline__ Floats& recent_u(int slot) const { return shared.u[slot][lane_of_warp()]; }
    __device__ __forceinline__ Floats& recent_dz(int slot) const { return shared.dz[slot][lane_of_warp()]; }
    __device__ __forceinline__ Column column(const HyenaTensor& x, int before = 0) const {
        return {x, forward.channels, batch, channel, segment.first - before};
    }
    __device__ __forceinline__ bool exists(int c) const { return channel + c < forward.channels; }

    // ---- Whole steps of aligned vectors

    struct Windows {
        float u[kBefore + kStep][kChannels], dz[kDelay + kStep][kChannels];  // the step's tokens come last
        Values x1[kKept + kStep], v[kKept + kStep];
    };
    struct Inputs {
        Values x1[kStep], v[kStep], x2[kStep], grad[kStep];
    };

    __device__ __forceinline__ void begin(Windows& now) const {
#pragma unroll
        for (int i = 0; i < kDelay; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) now.dz[i][c] = 0.f;
        if (segment.first == 0) {
            load_recent();
#pragma unroll
            for (int i = 0; i < kBefore; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) now.u[i][c] = recent_u(kDelay - kBefore + i)[c];
        } else {
            load_u<kBefore>(now.u, column(forward.x1, kBefore), column(forward.v, kBefore));
        }
    }
    // Steps from the segment's first token to `end`.
    __device__ __forceinline__ void process_vectors(int end) {
        Windows now;
        begin(now);
        Column x1 = column(forward.x1), v = column(forward.v), x2 = column(forward.x2), dy = column(args.dy);
        Inputs next;
        const auto load_next = [&] {
            x1.template load<kStep>(next.x1);
            v.template load<kStep>(next.v);
            x2.template load<kStep>(next.x2);
            dy.template load<kStep>(next.grad);
        };
        if (segment.first < end) load_next();
#pragma unroll 1
        for (int token = segment.first; token < end; token += kStep) {
            const bool is_late = token - kDelay >= segment.first;
            if constexpr (!kKeepsInputs)
                if (is_late) late_x1.template load<kStep>(now.x1), late_v.template load<kStep>(now.v);
            float grad[kStep][kChannels];
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) grad[i][c] = next.grad[i][c];
            if (forward.mask.values.data != nullptr) multiply_by_mask(grad, token);
#pragma unroll
            for (int i = 0; i < kStep; ++i) {
                if constexpr (kKeepsInputs) now.x1[kKept + i] = next.x1[i], now.v[kKept + i] = next.v[i];
#pragma unroll
                for (int c = 0; c < kChannels; ++c) {
                    now.dz[kDelay + i][c] = grad[i][c] * next.x2[i][c];
                    now.u[kBefore + i][c] = next.x1[i][c] * next.v[i][c];
                }
            }
            if (token + kStep < end) load_next();
            if (token < segment.end) convolve(now, grad);
            if (is_late) correlate(now, token - kDelay);
            shift(now);
        }
        save_windows(now);
    }
    // A loop that is not unrolled saves registers in mask_at; `recent_u` is unused while there are windows.
    __device__ __forceinline__ void multiply_by_mask(float (&grad)[kStep][kChannels], int token) const {
        static_assert(kStep <= kDelay);
#pragma unroll 1
        for (int i = 0; i < kStep; ++i) recent_u(i).items[0] = mask_at(forward.mask, batch, token + i);
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) grad[i][c] *= recent_u(i).items[0];
    }
    // Calls visit(lag, taps of that lag, token of the step, channel) for every tap, token and channel.
    __device__ __forceinline__ void for_products(auto&& visit) const {
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (kConfig.ends_before(lag, forward.filter.taps)) break;
            const Floats weight = tap(lag);
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) visit(lag, weight, i, c);
        }
    }
    // The gradients of x2 and of the taps. `grad` is already masked.
    __device__ __forceinline__ void convolve(const Windows& now, const float (&grad)[kStep][kChannels]) {
        float z[kStep][kChannels];
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                const float factor = forward.filter.gated_bias ? now.u[kBefore + i][c] : 1.f;
                z[i][c] = bias[c] * factor;
                dbias[c] = fmaf(now.dz[kDelay + i][c], factor, dbias[c]);
            }
        for_products([&](int lag, const Floats& weight, int i, int c) {
            z[i][c] = fmaf(weight[c], now.u[kBefore + i - lag][c], z[i][c]);
            dtaps[lag][c] = fmaf(now.dz[kDelay + i][c], now.u[kBefore + i - lag][c], dtaps[lag][c]);
        });
        Values y[kStep];
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) y[i].set(c, grad[i][c] * z[i][c]);
        to_x2.template store<kStep>(y);
    }
    // The gradients of x1 and v from `token` on.
    __device__ __forceinline__ void correlate(const Windows& now, int token) {
        float du[kStep][kChannels];
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) du[i][c] = forward.filter.gated_bias ? bias[c] * now.dz[i][c] : 0.f;
        for_products(
            [&](int lag, const Floats& weight, int i, int c) { du[i][c] = fmaf(weight[c], now.dz[i + lag][c], du[i][c]); });
        if (token + kStep > forward.tokens - (forward.filter.taps - 1)) {
#pragma unroll 1
            for (int i = 0; i < kStep; ++i) recent_u(i) = last_gradients(token + i);
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) du[i][c] += recent_u(i)[c];
        }
        Values y[kStep];
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) y[i].set(c, du[i][c] * now.v[i][c]);
        to_x1.template store<kStep>(y);
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) y[i].set(c, du[i][c] * now.x1[i][c]);
        to_v.template store<kStep>(y);
    }
    __device__ __forceinline__ Floats last_gradients(int token) const {
        Floats x;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) x.items[c] = exists(c) ? last_state_gradient(args, batch, channel + c, token) : 0.f;
        return x;
    }
    // Advances the windows by a step.
    __device__ __forceinline__ void shift(Windows& now) const {
#pragma unroll
        for (int i = 0; i < kKept; ++i) now.x1[i] = now.x1[i + kStep], now.v[i] = now.v[i + kStep];
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
#pragma unroll
            for (int i = 0; i < kBefore; ++i) now.u[i][c] = now.u[i + kStep][c];
#pragma unroll
            for (int i = 0; i < kDelay; ++i) now.dz[i][c] = now.dz[i + kStep][c];
        }
    }
    __device__ __forceinline__ void save_windows(const Windows& now) const {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
#pragma unroll
            for (int i = 0; i < kBefore; ++i) recent_u(kDelay - kBefore + i).items[c] = now.u[i][c];
#pragma unroll
            for (int i = 0; i < kDelay; ++i) recent_dz(i).items[c] = now.dz[i][c];
        }
    }

    // ---- Tokens one by one

    // Loads what precedes the segment's first token, which has slot kDelay.
    __device__ __forceinline__ void load_recent() const {
#pragma unroll 1
        for (int before = 1; before <= kDelay; ++before)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                const bool is_seen = before < forward.filter.taps && exists(c);
                recent_u(kDelay - before).items[c] =
                    is_seen ? u_at<T>(forward, batch, channel + c, segment.first - before) : 0.f;
                recent_dz(kDelay - before).items[c] = 0.f;
            }
    }
    __device__ __forceinline__ float value_at(const HyenaTensor& x, int token, int c) const {
        return HyenaRow<T>(x, batch, channel + c).at(token);
    }
    __device__ __forceinline__ float mask_of(int token) const {
        return forward.mask.values.data == nullptr ? 1.f : mask_at(forward.mask, batch, token);
    }
    // Tokens from `token` on, and the delayed ones.
    __device__ __forceinline__ void process_elements(int token) {
        int slot = kDelay;
#pragma unroll 1
        for (; token < segment.end + kDelay; ++token) {
            Floats grad{}, dz{}, u{};
            if (token < forward.tokens) {
                const float mask = mask_of(token);
#pragma unroll
                for (int c = 0; c < kChannels; ++c) {
                    if (!exists(c)) break;
                    grad.items[c] = value_at(args.dy, token, c) * mask;
                    dz.items[c] = grad[c] * value_at(forward.x2, token, c);
                    if (token < segment.end) u.items[c] = u_at<T>(forward, batch, channel + c, token);
                }
            }
            recent_u(slot) = u;
            recent_dz(slot) = dz;
            if (token < segment.end) convolve_one(slot, u, dz, grad);
            slot = slot == kDelay ? 0 : slot + 1;  // the oldest delayed token's slot
            if (token - kDelay >= segment.first) correlate_one(slot, token - kDelay);
        }
    }
    __device__ __forceinline__ void convolve_one(int slot, const Floats& u, const Floats& dz, const Floats& grad) {
        Floats z;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
            const float factor = forward.filter.gated_bias ? u[c] : 1.f;
            z.items[c] = bias[c] * factor;
            dbias[c] = fmaf(dz[c], factor, dbias[c]);
        }
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (kConfig.ends_before(lag, forward.filter.taps)) break;
            const Floats weight = tap(lag), before = recent_u(slot);
            slot = slot == 0 ? kDelay : slot - 1;
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                z.items[c] = fmaf(weight[c], before[c], z[c]);
                dtaps[lag][c] = fmaf(dz[c], before[c], dtaps[lag][c]);
            }
        }
        Values y;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) y.set(c, grad[c] * z[c]);
        to_x2.store_one(y);
    }
    __device__ __forceinline__ void correlate_one(int slot, int token) {
        Floats du;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) du.items[c] = forward.filter.gated_bias ? bias[c] * recent_dz(slot)[c] : 0.f;
#pragma unroll 4
        for (int lag = 0; lag < forward.filter.taps; ++lag) {
            const Floats weight = tap(lag), later = recent_dz(slot);
            slot = slot == kDelay ? 0 : slot + 1;
#pragma unroll
            for (int c = 0; c < kChannels; ++c) du.items[c] = fmaf(weight[c], later[c], du[c]);
        }
        if (token >= forward.tokens - (forward.filter.taps - 1)) {
            const Floats last = last_gradients(token);
#pragma unroll
            for (int c = 0; c < kChannels; ++c) du.items[c] += last[c];
        }
        Values y;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) y.set(c, exists(c) ? du[c] * value_at(forward.v, token, c) : 0.f);
        to_x1.store_one(y);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) y.set(c, exists(c) ? du[c] * value_at(forward.x1, token, c) : 0.f);
        to_v.store_one(y);
    }

    // ---- The segment

    __device__ __forceinline__ void run() {
        load_lane_filter<kConfig.taps>(bias, forward, channel, [&](int lag) -> Floats& { return tap(lag); });
        int token = segment.first;
        if (forward.vectors && forward.channels % kChannels == 0) {
            token += (min(segment.end + kDelay, forward.tokens) - segment.first) / kStep * kStep;
            process_vectors(token);
        } else {
            load_recent();
        }
        process_elements(token);
        write_sums();
        if (segment.index == 0 && args.dinitial != nullptr) write_initial_gradient();
    }
    __device__ __forceinline__ void write_sums() const {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
            if (!exists(c)) break;
            const i64 at = sums_of(forward, segment, channel + c);
            args.dbias[at] = dbias[c];
#pragma unroll
            for (int lag = 0; lag < kConfig.taps; ++lag) {
                if (kConfig.ends_before(lag, forward.filter.taps)) break;
                args.dweight[at * forward.filter.taps + forward.filter.taps - 1 - lag] = dtaps[lag][c];
            }
        }
    }
    __device__ __forceinline__ void write_initial_gradient() const {
        const int length = forward.filter.taps - 1;
#pragma unroll 1
        for (int c = 0; c < kChannels && exists(c); ++c)
#pragma unroll 1
            for (int token = -length; token < 0; ++token) {
                float sum = last_state_gradient(args, batch, channel + c, token);
#pragma unroll 4
                for (int at = 0; at < min(token + length + 1, forward.tokens); ++at) {
                    const float dz = value_at(args.dy, at, c) * mask_of(at) * value_at(forward.x2, at, c);
                    sum = fmaf(tap(at - token).items[c], dz, sum);
                }
                args.dinitial[(static_cast<i64>(batch) * forward.channels + channel + c + 1) * length + token] = sum;
            }
    }
};

template <HyenaShortConfig kConfig>
__global__ void __launch_bounds__(kHyenaShortThreads, blocks_without_spills(HyenaShortBackwardColumns{kConfig}.blocks()))
    hyena_short_columns_backward(const __grid_constant__ HyenaShortBackwardArgs args) {
    using Columns = HyenaShortColumnsBackward<kConfig>;
    constexpr int kChannels = Columns::kColumns.warp_channels();
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = reinterpret_cast<typename Columns::Shared*>(memory)[threadIdx.x / 32];
    const HyenaArgs& forward = args.forward;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int columns = static_cast<int>(ceil_div(forward.channels, kChannels));
    const HyenaSegment segment = segment_of_columns(forward, static_cast<i64>(blockIdx.x) * kHyenaShortWarps + warp, columns);
    const int channel = segment.column * kChannels + lane_of_warp() * Columns::kChannels;
    if (!segment.exists(forward) || channel >= forward.channels) return;  // no warp-level sync follows
    Columns{args, shared, segment, channel}.run();
}

}  // namespace gdn_cuda::conv
