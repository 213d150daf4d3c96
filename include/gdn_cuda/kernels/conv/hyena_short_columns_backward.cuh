// conv/hyena_short_columns_backward: what conv/hyena_short_backward computes, where channels are neighbours in memory.
//
// A warp walks over its tokens of 64 neighbouring channels (32 from 9 taps on), four tokens a step (eight). A lane has two
// channels or one, with u and dz of the last tokens in two windows in registers, and a sum for each tap. A step computes the
// gradient of x2 at its own tokens, and those of x1 and v some tokens earlier (`delay`), because they need dz behind theirs. Up
// to 8 taps x1 and v stay in registers until then; for more taps they come again from the caches. The next step's loads are in
// flight while a step is computed.
//
// Shared memory: the taps of the warp's channels, newest first, and the last values of u and dz, for tokens that are read one
// by one: those behind the last whole step, and all of tensors without aligned vectors.
//
// Bound: as hyena_short_backward: 77 % of an H200's speed with 7 taps. The tokens next to a warp's share, at both ends, are
// read twice.
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
    using Some = typename Column::Some;
    using Numbers = Vector<float, kChannels, true>;
    using Shared = HyenaShortColumnsBackwardShared<kConfig, Numbers>;

    const HyenaShortBackwardArgs& args;
    Shared& shared;  // of the warp; a lane reads what it wrote
    const HyenaShare& share;
    const int channel;  // the lane's first
    const HyenaArgs& forward = args.forward;
    const int batch = share.batch;
    float of_taps[kConfig.taps][kChannels] = {}, of_bias[kChannels] = {}, bias[kChannels];
    Column to_x1 = column(args.of_x1), to_x2 = column(args.of_x2), to_v = column(args.of_v);
    Column late_x1 = column(forward.x1), late_v = column(forward.v);  // at the tokens of to_x1 and to_v

    __device__ __forceinline__ Numbers& tap(int lag) const { return shared.taps[lag][lane_of_warp()]; }
    __device__ __forceinline__ Numbers& recent_u(int slot) const { return shared.u[slot][lane_of_warp()]; }
    __device__ __forceinline__ Numbers& recent_dz(int slot) const { return shared.dz[slot][lane_of_warp()]; }
    __device__ __forceinline__ Column column(const HyenaTensor& x, int before = 0) const {
        return {x, forward.channels, batch, channel, share.first - before};
    }
    __device__ __forceinline__ bool exists(int c) const { return channel + c < forward.channels; }

    // ---- Whole steps of aligned vectors

    struct Windows {
        float u[kBefore + kStep][kChannels], dz[kDelay + kStep][kChannels];  // the step's tokens come last
        Some x1[kKept + kStep], v[kKept + kStep];
    };
    struct Inputs {
        Some x1[kStep], v[kStep], x2[kStep], grad[kStep];
    };

    __device__ __forceinline__ void begin(Windows& now) const {
#pragma unroll
        for (int i = 0; i < kDelay; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) now.dz[i][c] = 0.f;
        if (share.first == 0) {
            load_recent();
#pragma unroll
            for (int i = 0; i < kBefore; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) now.u[i][c] = recent_u(kDelay - kBefore + i)[c];
        } else {
            load_u<kBefore>(now.u, column(forward.x1, kBefore), column(forward.v, kBefore));
        }
    }
    // Steps from the share's first token to `end`.
    __device__ __forceinline__ void walk_vectors(int end) {
        Windows now;
        begin(now);
        Column x1 = column(forward.x1), v = column(forward.v), x2 = column(forward.x2), of_y = column(args.of_y);
        Inputs next;
        const auto load_next = [&] {
            x1.template load<kStep>(next.x1);
            v.template load<kStep>(next.v);
            x2.template load<kStep>(next.x2);
            of_y.template load<kStep>(next.grad);
        };
        if (share.first < end) load_next();
#pragma unroll 1
        for (int token = share.first; token < end; token += kStep) {
            const bool is_late = token - kDelay >= share.first;
            if constexpr (!kKeepsInputs)
                if (is_late) late_x1.template load<kStep>(now.x1), late_v.template load<kStep>(now.v);
            float grad[kStep][kChannels];
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) grad[i][c] = next.grad[i][c];
            if (forward.mask.numbers.data != nullptr) multiply_by_mask(grad, token);
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
            if (token < share.end) convolve(now, grad);
            if (is_late) correlate(now, token - kDelay);
            move(now);
        }
        keep(now);
    }
    // In a loop that is not unrolled mask_at takes few registers; `recent_u` is free as long as there are windows.
    __device__ __forceinline__ void multiply_by_mask(float (&grad)[kStep][kChannels], int token) const {
        static_assert(kStep <= kDelay);
#pragma unroll 1
        for (int i = 0; i < kStep; ++i) recent_u(i).items[0] = mask_at(forward.mask, batch, token + i);
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) grad[i][c] *= recent_u(i).items[0];
    }
    // The gradients of x2 and of the taps. grad: times the mask.
    __device__ __forceinline__ void convolve(const Windows& now, const float (&grad)[kStep][kChannels]) {
        float z[kStep][kChannels];
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                const float factor = forward.filter.gated_bias ? now.u[kBefore + i][c] : 1.f;
                z[i][c] = bias[c] * factor;
                of_bias[c] = fmaf(now.dz[kDelay + i][c], factor, of_bias[c]);
            }
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (kConfig.ends_before(lag, forward.filter.taps)) break;
            const Numbers weight = tap(lag);
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) {
                    z[i][c] = fmaf(weight[c], now.u[kBefore + i - lag][c], z[i][c]);
                    of_taps[lag][c] = fmaf(now.dz[kDelay + i][c], now.u[kBefore + i - lag][c], of_taps[lag][c]);
                }
        }
        Some y[kStep];
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) y[i].set(c, grad[i][c] * z[i][c]);
        to_x2.template store<kStep>(y);
    }
    // The gradients of x1 and v from a token on.
    __device__ __forceinline__ void correlate(const Windows& now, int token) {
        float du[kStep][kChannels];
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) du[i][c] = forward.filter.gated_bias ? bias[c] * now.dz[i][c] : 0.f;
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (kConfig.ends_before(lag, forward.filter.taps)) break;
            const Numbers weight = tap(lag);
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) du[i][c] = fmaf(weight[c], now.dz[i + lag][c], du[i][c]);
        }
        if (token + kStep > forward.tokens - (forward.filter.taps - 1)) {
#pragma unroll 1
            for (int i = 0; i < kStep; ++i) recent_u(i) = of_last(token + i);
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) du[i][c] += recent_u(i)[c];
        }
        Some y[kStep];
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
    __device__ __forceinline__ Numbers of_last(int token) const {
        Numbers x;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) x.items[c] = exists(c) ? of_last_at(args, batch, channel + c, token) : 0.f;
        return x;
    }
    // By a step.
    __device__ __forceinline__ void move(Windows& now) const {
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
    __device__ __forceinline__ void keep(const Windows& now) const {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
#pragma unroll
            for (int i = 0; i < kBefore; ++i) recent_u(kDelay - kBefore + i).items[c] = now.u[i][c];
#pragma unroll
            for (int i = 0; i < kDelay; ++i) recent_dz(i).items[c] = now.dz[i][c];
        }
    }

    // ---- Tokens one by one

    // What comes before the share's first token, which has slot kDelay.
    __device__ __forceinline__ void load_recent() const {
#pragma unroll 1
        for (int before = 1; before <= kDelay; ++before)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                const bool is_met = before < forward.filter.taps && exists(c);
                recent_u(kDelay - before).items[c] = is_met ? u_at<T>(forward, batch, channel + c, share.first - before) : 0.f;
                recent_dz(kDelay - before).items[c] = 0.f;
            }
    }
    __device__ __forceinline__ float number_at(const HyenaTensor& x, int token, int c) const {
        return HyenaRow<T>(x, batch, channel + c).at(token);
    }
    __device__ __forceinline__ float mask_of(int token) const {
        return forward.mask.numbers.data == nullptr ? 1.f : mask_at(forward.mask, batch, token);
    }
    // Tokens from `token` on, and those that wait for them.
    __device__ __forceinline__ void walk_elements(int token) {
        int slot = kDelay;
#pragma unroll 1
        for (; token < share.end + kDelay; ++token) {
            Numbers grad{}, dz{}, u{};
            if (token < forward.tokens) {
                const float mask = mask_of(token);
#pragma unroll
                for (int c = 0; c < kChannels; ++c) {
                    if (!exists(c)) break;
                    grad.items[c] = number_at(args.of_y, token, c) * mask;
                    dz.items[c] = grad[c] * number_at(forward.x2, token, c);
                    if (token < share.end) u.items[c] = u_at<T>(forward, batch, channel + c, token);
                }
            }
            recent_u(slot) = u;
            recent_dz(slot) = dz;
            if (token < share.end) convolve_one(slot, u, dz, grad);
            slot = slot == kDelay ? 0 : slot + 1;  // of the token that has waited longest
            if (token - kDelay >= share.first) correlate_one(slot, token - kDelay);
        }
    }
    __device__ __forceinline__ void convolve_one(int slot, const Numbers& u, const Numbers& dz, const Numbers& grad) {
        Numbers z;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
            const float factor = forward.filter.gated_bias ? u[c] : 1.f;
            z.items[c] = bias[c] * factor;
            of_bias[c] = fmaf(dz[c], factor, of_bias[c]);
        }
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (kConfig.ends_before(lag, forward.filter.taps)) break;
            const Numbers weight = tap(lag), before = recent_u(slot);
            slot = slot == 0 ? kDelay : slot - 1;
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                z.items[c] = fmaf(weight[c], before[c], z[c]);
                of_taps[lag][c] = fmaf(dz[c], before[c], of_taps[lag][c]);
            }
        }
        Some y;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) y.set(c, grad[c] * z[c]);
        to_x2.store_one(y);
    }
    __device__ __forceinline__ void correlate_one(int slot, int token) {
        Numbers du;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) du.items[c] = forward.filter.gated_bias ? bias[c] * recent_dz(slot)[c] : 0.f;
#pragma unroll 4
        for (int lag = 0; lag < forward.filter.taps; ++lag) {
            const Numbers weight = tap(lag), behind = recent_dz(slot);
            slot = slot == kDelay ? 0 : slot + 1;
#pragma unroll
            for (int c = 0; c < kChannels; ++c) du.items[c] = fmaf(weight[c], behind[c], du[c]);
        }
        if (token >= forward.tokens - (forward.filter.taps - 1)) {
            const Numbers last = of_last(token);
#pragma unroll
            for (int c = 0; c < kChannels; ++c) du.items[c] += last[c];
        }
        Some y;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) y.set(c, exists(c) ? du[c] * number_at(forward.v, token, c) : 0.f);
        to_x1.store_one(y);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) y.set(c, exists(c) ? du[c] * number_at(forward.x1, token, c) : 0.f);
        to_v.store_one(y);
    }

    // ---- The share

    __device__ __forceinline__ void run() {
        load_filter_of_lane<kConfig.taps>(bias, forward, channel, [&](int lag) -> Numbers& { return tap(lag); });
        int token = share.first;
        if (forward.vectors && forward.channels % kChannels == 0) {
            token += (min(share.end + kDelay, forward.tokens) - share.first) / kStep * kStep;
            walk_vectors(token);
        } else {
            load_recent();
        }
        walk_elements(token);
        write_sums();
        if (share.segment == 0 && args.of_initial != nullptr) write_initial();
    }
    __device__ __forceinline__ void write_sums() const {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
            if (!exists(c)) break;
            const i64 at = sums_of(forward, share, channel + c);
            args.of_bias[at] = of_bias[c];
#pragma unroll
            for (int lag = 0; lag < kConfig.taps; ++lag) {
                if (kConfig.ends_before(lag, forward.filter.taps)) break;
                args.of_weight[at * forward.filter.taps + forward.filter.taps - 1 - lag] = of_taps[lag][c];
            }
        }
    }
    // The gradient of the initial state.
    __device__ __forceinline__ void write_initial() const {
        const int length = forward.filter.taps - 1;
#pragma unroll 1
        for (int c = 0; c < kChannels && exists(c); ++c)
#pragma unroll 1
            for (int token = -length; token < 0; ++token) {
                float sum = of_last_at(args, batch, channel + c, token);
#pragma unroll 4
                for (int at = 0; at < min(token + length + 1, forward.tokens); ++at) {
                    const float dz = number_at(args.of_y, at, c) * mask_of(at) * number_at(forward.x2, at, c);
                    sum = fmaf(tap(at - token).items[c], dz, sum);
                }
                args.of_initial[(static_cast<i64>(batch) * forward.channels + channel + c + 1) * length + token] = sum;
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
    const HyenaShare share = share_of_columns(forward, static_cast<i64>(blockIdx.x) * kHyenaShortWarps + warp, columns);
    const int channel = share.column * kChannels + lane_of_warp() * Columns::kChannels;
    if (!share.exists(forward) || channel >= forward.channels) return;  // lanes do not meet
    Columns{args, shared, share, channel}.run();
}

}  // namespace gdn_cuda::conv
