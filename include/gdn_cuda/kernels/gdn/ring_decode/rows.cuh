// gdn/ring_decode: rows of the state, in shared memory from their load on: products with keys and queries, and the state that
// is written where the ring has no more room.
#pragma once

#include <gdn_cuda/kernels/gdn/ring_decode/tokens.cuh>

namespace gdn_cuda::gdn {

// ring_vector_at for codes, of which lanes (g, t) of half a warp read 8 bytes of four rows at once.
template <int kVectors>
__device__ __forceinline__ int ring_codes_at(int row, int vector) {
    return kVectors >= 8 ? vector ^ (row & 3) << 1 : vector ^ (row & 2);
}

template <RingDecodeConfig kConfig>
struct RingRows {
    using Io = Storage<kConfig.io>;
    using State = Storage<kConfig.state>;
    using Update = Storage<kConfig.updates()>;
    using Shared = RingDecodeSharedPlan<kConfig>;
    static constexpr int kVectors = kConfig.state_vectors(), kPerVector = 16 / int(sizeof(State));

    Shared& shared;
    const RingDecodeArgs& args;
    const RingPlace<kConfig>& place;
    State* block;   // the block's first row in the pool
    float* scales;  // for int8 states
    int groups;     // scales of a row

    __device__ __forceinline__ RingRows(Shared& shared, const RingDecodeArgs& args, const RingPlace<kConfig>& place)
        : shared(shared), args(args), place(place) {
        const i64 first = static_cast<i64>(place.head) * args.dv + place.first_row;
        block = static_cast<State*>(args.pool) + place.slot * args.pool_slot + first * args.dk;
        if constexpr (kConfig.codes()) {
            groups = args.dk / kCodeGroup;
            scales = args.scales + place.slot * args.scales_slot + first * groups;
        }
    }
    __device__ __forceinline__ static int vector_at(int row, int vector) {
        return kConfig.codes() ? ring_codes_at<kVectors>(row, vector) : ring_vector_at(row, vector);
    }

    // 16 bytes a thread and copy, contiguous over the block; zeros past dk.
    __device__ __forceinline__ void load() const {
        constexpr int kRowStep = kConfig.threads() / kVectors;
        const int vector = threadIdx.x % kVectors, first = threadIdx.x / kVectors;
        const bool exists = vector * kPerVector < args.dk;
        const State* from = block + first * args.dk + (exists ? vector * kPerVector : 0);
        const auto copy = [&](int n) {
            const int row = first + n * kRowStep;
            cp_async_16_zfill(static_cast<unsigned>(__cvta_generic_to_shared(shared.state[row] + vector_at(row, vector))), from,
                              exists);
            from += kRowStep * args.dk;
        };
        constexpr int kCopies = Shared::kRows / kRowStep;
        if (place.rows == Shared::kRows) {
#pragma unroll
            for (int n = 0; n < kCopies; ++n) copy(n);
        } else {
#pragma unroll 1
            for (int n = 0; n < kCopies && first + n * kRowStep < place.rows; ++n) copy(n);
        }
        if constexpr (kConfig.codes())
            for (int i = threadIdx.x * 4; i < place.rows * groups; i += kConfig.threads() * 4)
                cp_async_16(shared.scales + i, scales + i);
    }

    // Stores the products of rows with all keys and queries.
    __device__ __forceinline__ void multiply() const {
        if constexpr (kConfig.tensor_cores())
            multiply_by_tensor_cores();
        else
            multiply_in_fp32();
    }

    // Writes the state with the ring's tokens, and the new ones unless they wait to be accepted.
    __device__ __forceinline__ void fold() const {
        if constexpr (kConfig.tensor_cores())
            fold_by_tensor_cores();
        else
            fold_in_fp32();
    }

  private:
    // The decay over all new tokens that the written state takes, or over those after one of them.
    __device__ __forceinline__ float decay_after(int token) const {
        float decay = 1.f;
#pragma unroll 1
        for (int t = token + 1; t < added(); ++t) decay *= shared.decay[t];
        return decay;
    }
    __device__ __forceinline__ int added() const { return args.verifies() ? 0 : place.length; }

    __device__ __forceinline__ void fold_in_fp32() const {
        // A lane has 4 columns of 8 rows at a time.
        constexpr int kColumns = 4, kRows = 8, kLanes = kConfig.head_k / kColumns < 32 ? kConfig.head_k / kColumns : 32;
        const int lane = threadIdx.x % 32, group = threadIdx.x / kLanes;
        const float new_decay = decay_after(-1), state_decay = new_decay * shared.state_decay;
#pragma unroll 1
        for (int base = 0; base < place.rows; base += kConfig.threads() / kLanes * kRows)
#pragma unroll 1
            for (int column = lane % kLanes * kColumns; column < kConfig.head_k; column += kLanes * kColumns) {
                const int first = min(base + group * kRows, place.rows - kRows);
                float wide[kRows][kColumns];
#pragma unroll
                for (int r = 0; r < kRows; ++r) load_state(wide[r], first + r, column, state_decay);
                const auto add = [&](const Vector<Io, kColumns, true>& key, float weight, const auto& update) {
                    float scaled[kColumns];
#pragma unroll
                    for (int i = 0; i < kColumns; ++i) scaled[i] = weight * key[i];
#pragma unroll
                    for (int r = 0; r < kRows; ++r)
#pragma unroll
                        for (int i = 0; i < kColumns; ++i) wide[r][i] = fmaf(update(r), scaled[i], wide[r][i]);
                };
#pragma unroll 1
                for (int j = 0; j < place.stored; ++j) {
                    const float weight = new_decay * shared.after[j];
                    if (weight == 0.f) continue;  // before a reset, whatever it was
                    Vector<Update, kRows, true> updates;
                    updates.load(reinterpret_cast<const Update*>(shared.updates[j]) + first);
                    add(token_at(shared.keys, j, column), weight, [&](int r) { return updates[r]; });
                }
#pragma unroll 1
                for (int t = 0; t < added(); ++t) {
                    const float after = decay_after(t);
                    if (after == 0.f) continue;
                    Vector<float, kRows, true> updates;
                    updates.load(shared.products[2 * t] + first);
                    add(token_at(shared.tokens, 2 * t, column), after, [&](int r) { return updates[r]; });
                }
                const bool exists = base + group * kRows < place.rows && column < args.dk;
#pragma unroll
                for (int r = 0; r < kRows; ++r) store_state(wide[r], first + r, column, exists);
            }
    }

    template <class Row>
    __device__ __forceinline__ static Vector<Io, 4, true> token_at(const Row* rows, int row, int column) {
        constexpr int kElements = RingDecodeConfig::kVectorElements;
        Vector<Io, 4, true> columns;
        columns.load(reinterpret_cast<const Io*>(rows[row][ring_vector_at(row, column / kElements)].bytes) +
                     column % kElements);
        return columns;
    }
    // A state's columns times a decay, of which 0 clears them.
    __device__ __forceinline__ void load_state(float (&to)[4], int row, int column, float decay) const {
        Vector<State, 4, true> columns;
        columns.load(reinterpret_cast<const State*>(shared.state[row][vector_at(row, column / kPerVector)].bytes) +
                     column % kPerVector);
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = decay == 0.f ? 0.f : decay * columns[i];
    }
    __device__ __forceinline__ void store_state(const float (&from)[4], int row, int column, bool exists) const {
        Vector<State, 4, true> rounded;
#pragma unroll
        for (int i = 0; i < 4; ++i) rounded.set(i, from[i]);
        if (exists) rounded.store(block + row * args.dk + column);
    }

    // A warp has 16 rows at a time as an accumulator, 32 columns of it. Updates times the decays after them are the left
    // operand, each the sum of two numbers of 16 bits; the ring's keys are the right one. New tokens take multiply-adds.
    __device__ __forceinline__ void fold_by_tensor_cores() const {
        constexpr int kRows = RingDecodeConfig::kTileRows, kSteps = kConfig.entries / 16, kGroup = 32;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const float new_decay = decay_after(-1), state_decay = new_decay * shared.state_decay;
        const auto straight = VectorOfLane::straight(lane), crossed = VectorOfLane::crossed(lane);
        // Tokens without a weight are 0 on the left, and the last one again on the right, as those may be infinite.
        const auto weight_of = [&](int entry) { return entry < place.stored ? new_decay * shared.after[entry] : 0.f; };
        const auto counted = [&](int entry) { return weight_of(entry) != 0.f ? entry : place.stored - 1; };
        const auto address = [](const void* at) { return static_cast<unsigned>(__cvta_generic_to_shared(at)); };
#pragma unroll 1
        for (int first = warp * kRows; first < place.rows; first += RingDecodeConfig::kWarps * kRows) {
            unsigned near[kSteps][4], rest[kSteps][4];
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                if (step * 16 >= place.stored) break;
                const int entry = counted(step * 16 + crossed.row), rows = min(first / 8 + crossed.vector, place.rows / 8 - 1);
                unsigned updates[4];
                ldmatrix_x4_trans(updates, address(shared.updates[entry] + rows));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int at = step * 16 + i / 2 * 8 + 2 * t;
                    const float2 weights{weight_of(at), weight_of(at + 1)}, x = unpack<kConfig.io>(updates[i]);
                    const float low = weights.x == 0.f ? 0.f : weights.x * x.x, high = weights.y == 0.f ? 0.f : weights.y * x.y;
                    near[step][i] = pack<kConfig.io>(low, high);
                    rest[step][i] = pack_residual<kConfig.io>(low, high, near[step][i]);
                }
            }
            const int rows[2] = {first + g, first + g + 8};
            const bool has[2] = {rows[0] < place.rows, rows[1] < place.rows};
#pragma unroll 1
            for (int column = 0; column < args.dk; column += kGroup) {
                float sums[4][4];  // 8 columns each
                load_group(sums, first, column, state_decay);
#pragma unroll
                for (int step = 0; step < kSteps; ++step) {
                    if (step * 16 >= place.stored) break;
                    const int entry = counted(step * 16 + straight.row);
#pragma unroll
                    for (int pair = 0; pair < 2; ++pair) {
                        unsigned keys[4];
                        ldmatrix_x4_trans(
                            keys, address(shared.keys[entry] + ring_vector_at(entry, column / 8 + 2 * pair + straight.vector)));
                        mma_m16n8k16<kConfig.io>(sums[2 * pair], near[step], keys[0], keys[1]);
                        mma_m16n8k16<kConfig.io>(sums[2 * pair], rest[step], keys[0], keys[1]);
                        mma_m16n8k16<kConfig.io>(sums[2 * pair + 1], near[step], keys[2], keys[3]);
                        mma_m16n8k16<kConfig.io>(sums[2 * pair + 1], rest[step], keys[2], keys[3]);
                    }
                }
#pragma unroll 1
                for (int token = 0; token < added(); ++token) {
                    const float after = decay_after(token);
                    if (after == 0.f) continue;
                    float update[2];
#pragma unroll
                    for (int r = 0; r < 2; ++r) update[r] = has[r] ? after * shared.products[2 * token][rows[r]] : 0.f;
#pragma unroll
                    for (int tile = 0; tile < 4; ++tile) {
                        const auto* const vector = shared.tokens[2 * token] + ring_vector_at(2 * token, column / 8 + tile);
                        const float2 key = unpack<kConfig.io>(reinterpret_cast<const unsigned*>(vector->bytes)[t]);
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            sums[tile][i] = fmaf(update[i / 2], i % 2 == 0 ? key.x : key.y, sums[tile][i]);
                    }
                }
                store_group(sums, rows, has, column);
            }
            __syncwarp();
            copy_out(first);
        }
    }
    // 32 columns of 16 rows times a decay, of which 0 clears them.
    __device__ __forceinline__ void load_group(float (&sums)[4][4], int first, int column, float decay) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        if constexpr (kConfig.codes()) {
            float scale[2];
            int rows[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                rows[r] = min(first + g + 8 * r, place.rows - 1);
                scale[r] = decay == 0.f ? 0.f : decay * shared.scales[rows[r] * groups + column / kCodeGroup];
            }
#pragma unroll
            for (int tile = 0; tile < 4; ++tile)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const auto* const vector = shared.state[rows[r]] + vector_at(rows[r], column / 16 + tile / 2);
                    const unsigned biased =
                        bias_codes(reinterpret_cast<const unsigned short*>(vector->bytes)[tile % 2 * 4 + t]);
                    sums[tile][2 * r] = scale[r] * code_of(biased, 0), sums[tile][2 * r + 1] = scale[r] * code_of(biased, 1);
                }
        } else {
            const auto straight = VectorOfLane::straight(lane);
            const int row = min(first + straight.row, place.rows - 1);
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                unsigned x[4];
                ldmatrix_x4(x, static_cast<unsigned>(__cvta_generic_to_shared(
                                   shared.state[row] + ring_vector_at(row, column / 8 + 2 * pair + straight.vector))));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float2 both = unpack<kConfig.state>(x[i]);
                    float* const to = sums[2 * pair + i / 2] + i % 2 * 2;
                    to[0] = decay == 0.f ? 0.f : decay * both.x, to[1] = decay == 0.f ? 0.f : decay * both.y;
                }
            }
        }
    }
    // Rounds them to where they were in shared memory; scales go to the pool.
    __device__ __forceinline__ void store_group(float (&sums)[4][4], const int (&rows)[2], const bool (&has)[2],
                                                int column) const {
        const int t = threadIdx.x % 4;
        if constexpr (kConfig.codes()) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float x[8], most = 0.f;
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    x[i] = sums[i / 2][2 * r + i % 2];
                    most = larger_magnitude(most, x[i]);
                }
                const float scale = scale_of_largest(largest_of_lanes<4>(most)), inverse = inverse_of_scale(scale);
                bound_elements<8>(x, scale);
                if (!has[r]) continue;
                if (t == 0) scales[rows[r] * groups + column / kCodeGroup] = scale;
#pragma unroll
                for (int tile = 0; tile < 4; ++tile) {
                    auto* const vector = shared.state[rows[r]] + vector_at(rows[r], column / 16 + tile / 2);
                    reinterpret_cast<unsigned short*>(vector->bytes)[tile % 2 * 4 + t] = static_cast<unsigned short>(
                        __byte_perm(code_bits(x[2 * tile], inverse), code_bits(x[2 * tile + 1], inverse), 0x0040));
                }
            }
        } else {
#pragma unroll
            for (int tile = 0; tile < 4; ++tile)
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    if (has[r]) {
                        Vector<State, 2, true> rounded;
                        rounded.set(0, sums[tile][2 * r]), rounded.set(1, sums[tile][2 * r + 1]);
                        rounded.store(
                            reinterpret_cast<State*>(shared.state[rows[r]][ring_vector_at(rows[r], column / 8 + tile)].bytes) +
                            2 * t);
                    }
        }
    }
    // Copies 16 rows to the pool, contiguous 16 bytes a lane.
    __device__ __forceinline__ void copy_out(int first) const {
        const int lane = threadIdx.x % 32, count = min(RingDecodeConfig::kTileRows, place.rows - first) * kVectors;
#pragma unroll 4
        for (int i = lane; i < count; i += 32) {
            const int row = first + i / kVectors, vector = i % kVectors;
            if (vector * kPerVector >= args.dk) continue;
            Raw<16> copy;
            copy.load(shared.state[row][vector_at(row, vector)].bytes);
            copy.store_global(block + row * args.dk + vector * kPerVector);
        }
    }
    // multiply_rows with the block's codes, of which a lane has 8 of a group.
    __device__ __forceinline__ void multiply_codes(float (&sums)[4], int first, int column, int columns) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const int rows[2] = {min(first + g, place.rows - 1), min(first + g + 8, place.rows - 1)};
#pragma unroll
        for (int group = 0; group < kConfig.groups(); ++group) {
            if (group >= groups) break;
            uint2 codes[2];
#pragma unroll
            for (int r = 0; r < 2; ++r)
                codes[r] = *reinterpret_cast<const uint2*>(shared.state[rows[r]][vector_at(rows[r], group * 2 + t / 2)].bytes +
                                                           t % 2 * 8);
            uint4 c{};
            if (column + g < columns)
                c = *reinterpret_cast<const uint4*>(shared.parts[column + g] + ring_vector_at(column + g, group * 4 + t));
            float part[4] = {};
            const CodePairs upper(codes[0].x), lower(codes[1].x), upper_next(codes[0].y), lower_next(codes[1].y);
            mma_m16n8k16<DType::f16>(part, {upper.low, lower.low, upper.high, lower.high}, c.x, c.y);
            mma_m16n8k16<DType::f16>(part, {upper_next.low, lower_next.low, upper_next.high, lower_next.high}, c.z, c.w);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[i] = fmaf(shared.scales[rows[i / 2] * groups + group], part[i], sums[i]);
        }
    }
    __device__ __forceinline__ void multiply_by_tensor_cores() const {
        constexpr int kStep = RingDecodeConfig::kTileRows * RingDecodeConfig::kWarps;
        const int first = static_cast<int>(threadIdx.x) / 32 * RingDecodeConfig::kTileRows;
        if (first >= place.rows) return;
        if (!kConfig.codes() && Shared::kRows > kStep &&
            first + kStep < place.rows)  // keys and queries are loaded once for two
            multiply_tiles<2>(first);
        else
#pragma unroll 1
            for (int tile = first; tile < place.rows; tile += kStep) multiply_tiles<1>(tile);
    }
    template <int kTiles>
    __device__ __forceinline__ void multiply_tiles(int first) const {
        constexpr int kStep = RingDecodeConfig::kTileRows * RingDecodeConfig::kWarps;
        const int vectors = 2 * place.length, columns = kConfig.parts() * vectors;
#pragma unroll 1
        for (int column = 0; column < columns; column += 8) {
            float sums[kTiles][4] = {};
            if constexpr (kConfig.codes())
                multiply_codes(sums[0], first, column, columns);
            else if constexpr (kConfig.splits())
                multiply_rows<kConfig.state, kVectors, kTiles, kStep>(sums, shared.state, first, place.rows - 1, shared.parts,
                                                                      column, columns);
            else
                multiply_rows<kConfig.state, kVectors, kTiles, kStep>(sums, shared.state, first, place.rows - 1, shared.tokens,
                                                                      column, columns);
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
                const auto& own = sums[tile];
                if constexpr (kConfig.splits()) {
                    const int vector = column / 2 + threadIdx.x % 4, row = first + tile * kStep + threadIdx.x % 32 / 4;
                    if (vector >= vectors) continue;
                    const float scale = shared.part_scale[vector];
                    if (row < place.rows) shared.products[vector][row] = scale * (own[0] + own[1]);
                    if (row + 8 < place.rows) shared.products[vector][row + 8] = scale * (own[2] + own[3]);
                } else {
                    each_sum(own, first + tile * kStep, column, [&](int row, int vector, float sum) {
                        if (row < place.rows && vector < vectors) shared.products[vector][row] = sum;
                    });
                }
            }
        }
    }

    // Eight lanes share a row. A lane has 32 elements at a time.
    __device__ __forceinline__ void multiply_in_fp32() const {
        constexpr int kLanes = 8, kGroups = kConfig.threads() / kLanes, kLaneVectors = kVectors / kLanes,
                      kRows = 32 / (4 * kLaneVectors);
        const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
#pragma unroll 1
        for (int first = group; first - group < place.rows; first += kRows * kGroups) {
            float state[kRows][kLaneVectors][4];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const int row = min(first + r * kGroups, place.rows - 1);
#pragma unroll
                for (int v = 0; v < kLaneVectors; ++v) load_state(state[r][v], row, (v * kLanes + lane) * 4, 1.f);
            }
#pragma unroll 1
            for (int vector = 0; vector < 2 * place.length; ++vector) {
                float sums[kRows] = {};
#pragma unroll
                for (int v = 0; v < kLaneVectors; ++v) {
                    const auto columns = token_at(shared.tokens, vector, (v * kLanes + lane) * 4);
#pragma unroll
                    for (int r = 0; r < kRows; ++r)
#pragma unroll
                        for (int i = 0; i < 4; ++i) sums[r] = fmaf(state[r][v][i], columns[i], sums[r]);
                }
                scatter_sums<kLanes>(sums, lane);
                const int row = first + lane * kRows / kLanes * kGroups;
                if ((kRows >= kLanes || lane % (kLanes / kRows) == 0) && row < place.rows)
                    shared.products[vector][row] = sums[0];
            }
        }
    }
};

}  // namespace gdn_cuda::gdn
