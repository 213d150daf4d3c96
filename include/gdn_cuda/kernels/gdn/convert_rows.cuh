// gdn/convert_rows: convert_states where each head's rows are contiguous and start on 16 bytes, codes on 8; others are moved by
// gdn/move_states.
//
// A thread converts vectors of 8 columns: four adjacent lanes have a group of codes. It loads all of its vectors before it
// converts the first one.
//
// Bound: memory, each element read and written once: 2.4 to 3.6 TB/s on an H200, where a copy has 3.7.
#pragma once

#include <gdn_cuda/kernels/common/storage.cuh>
#include <gdn_cuda/kernels/gdn/convert_rows_plan.cuh>
#include <gdn_cuda/kernels/gdn/move_states.cuh>

namespace gdn_cuda::gdn {

template <ConvertRowsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) convert_rows(const __grid_constant__ MoveStatesArgs args) {
    using From = Storage<kConfig.from>;
    using To = Storage<kConfig.to>;
    constexpr bool kFromCodes = kConfig.from == DType::i8, kToCodes = kConfig.to == DType::i8;
    constexpr int kColumns = kConfig.kColumns, kLanes = kCodeGroup / kColumns, kWords = kColumns * int(sizeof(From)) / 4;
    constexpr int kVectors = kConfig.vectors();
    const GdnCall& call = args.call;
    const int elements = call.dv * call.dk, begin = blockIdx.x * kConfig.block_elements() + threadIdx.x * kColumns;
    const auto at = [&](int i) { return begin + i * kConfig.threads() * kColumns; };
#pragma unroll 1
    for (i64 row = blockIdx.z; row < args.rows; row += gridDim.z) {
        const StateMove move = move_of<StatesMove::convert>(args, row);
        if (move.to < 0) continue;
        const bool reads = move.from >= 0;
        const From* const from =
            static_cast<const From*>(args.from.data) + move.from * args.from.slot + blockIdx.y * args.from.head;
        To* const to = static_cast<To*>(args.to.data) + move.to * args.to.slot + blockIdx.y * args.to.head;
        const auto scale_at = [&](const RecurrentStates& states, i64 slot, int offset) {
            return states.scales + slot * states.scales_slot + (blockIdx.y * states.head + offset) / kCodeGroup;
        };
        Vector<From, kColumns, true> given[kVectors];
        float scales[kVectors];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            scales[i] = move.otherwise;
            if (reads && at(i) < elements) {
                given[i].load_streaming(from + at(i));
                if constexpr (kFromCodes) scales[i] = *scale_at(args.from, move.from, at(i));
            } else {
#pragma unroll
                for (int j = 0; j < kWords; ++j) reinterpret_cast<unsigned*>(given[i].items)[j] = 0;
            }
        }
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            Vector<To, kColumns, true> stored;
            unsigned* const words = reinterpret_cast<unsigned*>(stored.items);
            const unsigned* const codes = reinterpret_cast<const unsigned*>(given[i].items);
            if constexpr (kFromCodes && kToCodes) {
                words[0] = codes[0], words[1] = codes[1];
            } else {
                float x[kColumns];
#pragma unroll
                for (int j = 0; j < kColumns; ++j) {
                    if (!reads)
                        x[j] = move.otherwise;
                    else if constexpr (kFromCodes)
                        x[j] = scales[i] * code_of(bias_codes(codes[j / 4]), j % 4);
                    else
                        x[j] = given[i][j];
                }
                if constexpr (kToCodes) {
                    float most = 0.f;
#pragma unroll
                    for (int j = 0; j < kColumns; ++j) most = larger_magnitude(most, x[j]);
                    scales[i] = scale_of_largest(largest_of_lanes<kLanes>(most));
                    bound_elements<kColumns>(x, scales[i]);
                    const float inverse = inverse_of_scale(scales[i]);
                    words[0] = pack_codes(x, inverse), words[1] = pack_codes(x + 4, inverse);
                } else {
#pragma unroll
                    for (int j = 0; j < kColumns; ++j) stored.set(j, x[j]);
                }
            }
            if (at(i) >= elements) continue;
            if constexpr (sizeof(To) < 4)
                stored.store_global(to + at(i));
            else
                stored.store(to + at(i));
            if constexpr (kToCodes)
                if (threadIdx.x % kLanes == 0) *scale_at(args.to, move.to, at(i)) = scales[i];
        }
    }
}

}  // namespace gdn_cuda::gdn
