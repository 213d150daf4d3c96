// scan/selective_backward, loads and stores of elements: a thread moves them between global memory and tiles in units of 4 or 8
// elements, and loads the next unit while it works on one. Units of vectors along tokens, in bf16 or fp32, and along channels
// in bf16, are compiled for their shape and dtype (PlainUnit); for all others both are tested at run time.
#pragma once

#include <gdn_cuda/kernels/common/raw_vector.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/block.cuh>

namespace gdn_cuda::scan {

template <SelectiveBackwardConfig kConfig>
struct BackwardUnits : BackwardBlock<kConfig> {
    using Block = BackwardBlock<kConfig>;
    using Block::args, Block::in, Block::place, Block::shared;
    using Block::kChannels, Block::kTokens, Block::kVectorsPerThread;
    using Block::offset_by, Block::global, Block::in_row, Block::swizzle;
    using typename Block::Config, typename Block::Shared, typename Block::Tile;

    // How the four elements of a unit are placed in a tile: a vector along tokens or along channels; or, if rows are not
    // vectors or the tile is not whole, tokens of one channel, kTokenStep apart, so that adjacent lanes access adjacent
    // elements. The latter are read and written one by one.
    enum class Shape { tokens, channels, strided };
    struct Unit {
        static constexpr bool kIsPlain = false, kIsAlongTokens = false;  // known at compile time
        static constexpr int kSize = 4;
        int channel, token;  // the first element's
        Shape shape;
        DType type;
        int count;  // how many elements exist, from the first one on
    };
    // Four tokens of one channel, or of two channels that are kRows apart; or four channels of one token. For calls without
    // δ_A.
    template <DType kType, Shape kShape = Shape::tokens>
    struct PlainUnit {
        static constexpr bool kIsPlain = true, kIsAlongTokens = kShape == Shape::tokens;
        static constexpr int kSize = kVectorsPerThread < 2 || kShape == Shape::channels ? 4 : 8,
                             kUnits = kVectorsPerThread * 4 / kSize;  // per thread
        static constexpr Shape shape = kShape;
        static constexpr DType type = kType;
        static constexpr int count = kSize;
        int channel, token;
    };
    static constexpr bool kIsNarrow = kConfig.is_narrow, kIsWide = kConfig.is_wide();
    static constexpr int kLanesOfRow = kStateChunk / 4, kRows = Config::kThreads / kLanesOfRow;
    template <class Unit>
    __device__ __forceinline__ bool has_delta_a(const Unit&) const {
        return !Unit::kIsPlain && in.delta_a.data != nullptr;
    }
    static constexpr int kTokenStep = kStateChunk / 4;

    __device__ __forceinline__ Shape shape_of(int tokens) const {
        if (!args.rows_are_vectors || place.channels < kChannels || tokens < kStateChunk) return Shape::strided;
        return args.along_tokens ? Shape::tokens : Shape::channels;
    }
    // fp16 is rare, and each dtype takes 0.4 s to compile.
    __device__ __forceinline__ bool is_plain(int tokens) const {
        const Shape shape = shape_of(tokens);
        return (shape == Shape::tokens || (kIsNarrow && shape == Shape::channels)) && in.delta_a.data == nullptr &&
               args.io != DType::f16;
    }
    __device__ __forceinline__ bool is_plain_along_tokens(int tokens) const { return args.along_tokens && is_plain(tokens); }
    // A thread's i-th unit; `tokens`: tokens of the tile. Tiles are accessed without bank conflicts.
    static constexpr unsigned kColumn = kChannels / 4;  // vectors
    template <DType kType, Shape kShape>
    __device__ __forceinline__ static PlainUnit<kType, kShape> plain_unit(int i) {
        const unsigned thread = recomputed_thread(), index = thread + i * Config::kThreads;
        if constexpr (kShape == Shape::channels)
            return {static_cast<int>(index % kColumn * 4), static_cast<int>(index / kColumn)};
        else
            return {static_cast<int>(thread / kLanesOfRow) + i * kRows * PlainUnit<kType>::kSize / 4,
                    static_cast<int>(thread % kLanesOfRow * 4)};
    }
    __device__ __forceinline__ Unit unit(int i, Shape shape, int tokens) const {
        constexpr unsigned kRow = kStateChunk / 4, kEights = kChannels / 8;
        const unsigned thread = recomputed_thread(), index = thread + i * Config::kThreads, lane = thread % 32,
                       warp = thread / 32;
        const auto at = [&](unsigned channel, unsigned token) {
            return Unit{static_cast<int>(channel), static_cast<int>(token), shape, kIsWide ? DType::f32 : args.io, 4};
        };
        if (shape == Shape::tokens) return at(index / kRow, index % kRow * 4);
        if (shape == Shape::channels) return at(index % kColumn * 4, index / kColumn);
        // A warp has 16 tokens of two channels that are four apart, or four tokens of eight channels.
        const unsigned group = warp + i * Config::kWarps;
        Unit unit = args.along_tokens ? at(warp + lane / 16 * 4 + i * 8, lane % 16)
                                      : at(lane % 8 + group % kEights * 8, lane / 8 + group / kEights * 4);
        unit.count = unit.channel < place.channels ? (tokens - unit.token + kTokenStep - 1) / kTokenStep : 0;
        return unit;
    }

    // ---- Tiles

    // Calls `call` with each element's index, channel and place in its row. What is added to the unit's channel or token
    // changes no other bits, so XOR adds it to the swizzled place.
    template <class Unit, class F>
    __device__ __forceinline__ static void each_element(const Unit& unit, const F& call) {
        const int row = in_row(unit.channel, unit.token);
        if (unit.shape == Shape::channels) {
#pragma unroll
            for (int i = 0; i < 4; ++i) call(i, unit.channel + i, row ^ swizzle(i));
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) call(i, unit.channel, row ^ i * kTokenStep);
        }
    }
    // Calls `call` with each vector's first index, channel and place in its row.
    template <class Unit, class F>
    __device__ __forceinline__ static void each_vector(const Unit& unit, const F& call) {
#pragma unroll
        for (int i = 0; i < Unit::kSize; i += 4) {
            const int channel = unit.channel + i / 4 * kRows;
            call(i, channel, in_row(channel, unit.token));
        }
    }
    template <class Unit, int kTiles>
    __device__ __forceinline__ static void put(const Tile (&tiles)[kTiles], const Unit& to,
                                               const float (&x)[kTiles][Unit::kSize]) {
        if (to.shape == Shape::tokens) {
            each_vector(to, [&](int i, int channel, int at) {
#pragma unroll
                for (int t = 0; t < kTiles; ++t)
                    *reinterpret_cast<float4*>(&tiles[t][channel][at]) = {x[t][i], x[t][i + 1], x[t][i + 2], x[t][i + 3]};
            });
        } else if constexpr (!Unit::kIsAlongTokens) {
            each_element(to, [&](int i, int channel, int at) {
#pragma unroll
                for (int t = 0; t < kTiles; ++t) tiles[t][channel][at] = x[t][i];
            });
        }
    }
    __device__ __forceinline__ static void load_four(float* to, const float* from) {
        const float4 x = *reinterpret_cast<const float4*>(from);
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
    template <class Unit, int kTiles>
    __device__ __forceinline__ static void get(float (&x)[kTiles][Unit::kSize], const Tile (&tiles)[kTiles], const Unit& from) {
        if (from.shape == Shape::tokens) {
            each_vector(from, [&](int i, int channel, int at) {
#pragma unroll
                for (int t = 0; t < kTiles; ++t) load_four(&x[t][i], &tiles[t][channel][at]);
            });
        } else if constexpr (!Unit::kIsAlongTokens) {
            each_element(from, [&](int i, int channel, int at) {
#pragma unroll
                for (int t = 0; t < kTiles; ++t) x[t][i] = tiles[t][channel][at];
            });
        }
    }
    // D or the bias of a unit's channels.
    template <class Unit>
    __device__ __forceinline__ static void per_channel(float (&to)[Unit::kSize], const float* from, const Unit& unit) {
        const int channel_step = unit.shape == Shape::channels ? 1 : 0;
#pragma unroll
        for (int i = 0; i < Unit::kSize; ++i) to[i] = from[unit.channel + i / 4 * kRows + i * channel_step];
    }
    // Σ C x, from the checkpoints, where the recurrence left it.
    template <class Unit>
    __device__ __forceinline__ void get_outputs(float (&y)[Unit::kSize], const Unit& from) const {
        const int k = from.token / kTokens, place = Shared::place_of_output(k, from.token % kTokens);
        if (from.shape == Shape::tokens) {
            each_vector(from, [&](int i, int channel, int) { load_four(&y[i], &shared.checkpoint[k][channel][place]); });
        } else if constexpr (!Unit::kIsAlongTokens) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool strided = from.shape == Shape::strided;
                y[i] = shared.checkpoint[k + strided * i * kTokenStep / kTokens][from.channel + !strided * i][place];
            }
        }
    }

    // ---- Memory

    using Rows = typename Shared::Rows;
    __device__ __forceinline__ Rows rows_of(const ChannelRows& x) const {
        const i64 offset = place.batch * x.batch + place.channel * x.channel + place.start * x.token;
        const int shift = args.io == DType::f32 ? 2 : 1;
        return {static_cast<char*>(x.data) + (offset << shift), static_cast<unsigned>(x.channel) << shift,
                static_cast<unsigned>(x.token) << shift};
    }
    __device__ __forceinline__ void keep_rows() const {
        shared.u = rows_of(in.u), shared.delta = rows_of(in.delta), shared.grad_out = rows_of(args.grad_out);
        shared.z = rows_of(in.z), shared.delta_a = rows_of(in.delta_a);
        shared.du = rows_of(args.du), shared.ddelta = rows_of(args.ddelta), shared.dz = rows_of(args.dz);
        shared.ddelta_a = rows_of(args.ddelta_a);
    }
    // The host has checked that strides fit in 32 bits.
    template <class Unit>
    __device__ __forceinline__ static char* address(const Rows& rows, const Unit& at, int first) {
        return offset_by(offset_by(global(rows.begin), at.channel, rows.channel_stride), first + at.token, rows.token_stride);
    }
    template <int kSize>
    struct InFlight {
        RawVector<4> u[kSize / 4], delta[kSize / 4], grad_out[kSize / 4], z[kSize / 4], delta_a[kSize / 4];
    };
    template <int kSize>
    struct Floats {
        float u[kSize], delta[kSize], grad_out[kSize], z[kSize], delta_a[kSize];
    };
    template <class Unit, class F>
    __device__ __forceinline__ void each_input(InFlight<Unit::kSize>& x, const Unit& at, const F& call) const {
        call(x.u, shared.u), call(x.delta, shared.delta), call(x.grad_out, shared.grad_out);
        if (in.z.data != nullptr) call(x.z, shared.z);
        if (has_delta_a(at)) call(x.delta_a, shared.delta_a);
    }
    // Prefetches a chunk's plain units into L2 while the recurrence runs over another chunk.
    __device__ __forceinline__ void prefetch(int first) const {
        if (!is_plain_along_tokens(kStateChunk)) return;
        constexpr unsigned kSector = 32;
        const unsigned log_sectors = args.io == DType::f32 ? 3 : 2;  // per row
        static_assert(kStateChunk * sizeof(float) == kSector << 3);
#pragma unroll 1
        for (unsigned i = recomputed_thread(); i < kChannels << log_sectors; i += Config::kThreads) {
            const int channel = static_cast<int>(i >> log_sectors);
            const unsigned byte = (i - (channel << log_sectors)) * kSector;
            InFlight<4> none;
            each_input(none, Unit{channel, 0}, [&](auto&, const Rows& rows) {
                asm volatile("prefetch.global.L2 [%0];" ::"l"(address(rows, Unit{channel, 0}, first) + byte));
            });
        }
    }
    template <class Bits>
    __device__ __forceinline__ void load_each(InFlight<4>& x, const Unit& at, int first) const {
        each_input(x, at, [&](RawVector<4>(&x)[1], const Rows& rows) {
            const char* from = address(rows, at, first);
            const unsigned token_stride = rows.token_stride;
            x[0].template load_each<Bits>(at.count, [&](int i) { return offset_by(from, i * kTokenStep, token_stride); });
        });
    }
    template <class Unit>
    __device__ __forceinline__ void load(InFlight<Unit::kSize>& x, const Unit& at, int first) const {
        if (at.shape != Shape::strided) {
            each_input(x, at, [&](auto& x, const Rows& rows) {
                const char* from = address(rows, at, first);
                const unsigned channel_stride = rows.channel_stride;
#pragma unroll
                for (int i = 0; i < Unit::kSize / 4; ++i) x[i].load(offset_by(from, i * kRows, channel_stride), at.type);
            });
        } else if constexpr (!Unit::kIsPlain) {
            if (!kIsNarrow && at.type == DType::f32)
                load_each<unsigned>(x, at, first);
            else
                load_each<unsigned short>(x, at, first);
        }
    }
    template <DType kType, bool kEach, int kSize>
    __device__ __forceinline__ static void convert(Floats<kSize>& x, const InFlight<kSize>& raw) {
        const auto floats = [](float(&to)[kSize], const RawVector<4>(&from)[kSize / 4]) {
#pragma unroll
            for (int i = 0; i < kSize; i += 4) {
                float x[4];
                from[i / 4].template to_floats<kType, kEach>(x);
                to[i] = x[0], to[i + 1] = x[1], to[i + 2] = x[2], to[i + 3] = x[3];
            }
        };
        floats(x.u, raw.u), floats(x.delta, raw.delta), floats(x.grad_out, raw.grad_out);
        floats(x.z, raw.z), floats(x.delta_a, raw.delta_a);
    }
    template <bool kEach, class Unit>
    __device__ __forceinline__ static void convert(Floats<Unit::kSize>& x, const InFlight<Unit::kSize>& raw, const Unit& at) {
        if (at.type == DType::bf16)
            convert<DType::bf16, kEach>(x, raw);
        else if (!kIsNarrow && at.type == DType::f32)
            convert<DType::f32, kEach>(x, raw);
        else
            convert<DType::f16, kEach>(x, raw);
    }
    template <class Unit>
    __device__ __forceinline__ static void convert(Floats<Unit::kSize>& x, const InFlight<Unit::kSize>& raw, const Unit& at) {
        if (at.shape != Shape::strided)
            convert<false>(x, raw, at);
        else
            convert<true>(x, raw, at);
    }
    // Calls `call` with the elements of each unit, while the next unit's loads are in flight.
    template <class F>
    __device__ __forceinline__ void for_units(int first, int tokens, const F& call) const {
        if (!is_plain(tokens)) {
            const Shape shape = shape_of(tokens);
            for_units<kVectorsPerThread>(first, [&](int i) { return unit(i, shape, tokens); }, call);
        } else if (kIsNarrow && !args.along_tokens) {
            if constexpr (kIsNarrow) for_plain_units<DType::bf16, Shape::channels>(first, call);
        } else if (kIsNarrow || (!kIsWide && args.io == DType::bf16)) {
            if constexpr (!kIsWide) for_plain_units<DType::bf16, Shape::tokens>(first, call);
        } else {
            if constexpr (!kIsNarrow) for_plain_units<DType::f32, Shape::tokens>(first, call);
        }
    }
    template <DType kType, Shape kShape, class F>
    __device__ __forceinline__ void for_plain_units(int first, const F& call) const {
        for_units<PlainUnit<kType, kShape>::kUnits>(first, [](int i) { return plain_unit<kType, kShape>(i); }, call);
    }
    template <int kUnits, class F, class UnitAt>
    __device__ __forceinline__ void for_units(int first, const UnitAt& unit_at, const F& call) const {
        constexpr int kSize = decltype(unit_at(0))::kSize;
        InFlight<kSize> raw{};
        load(raw, unit_at(0), first);
#pragma unroll 1
        for (int i = 0; i < kUnits; ++i) {
            Floats<kSize> x;
            convert(x, raw, unit_at(i));
            if (i + 1 < kUnits) load(raw, unit_at(i + 1), first);
            call(x, unit_at(i));
        }
    }

    template <int kSize>
    struct Outputs {
        float du[kSize], ddelta[kSize], dz[kSize], ddelta_a[kSize];
    };
    template <class Unit, class F>
    __device__ __forceinline__ void each_output(const Outputs<Unit::kSize>& x, const Unit& at, const F& call) const {
        call(x.du, shared.du), call(x.ddelta, shared.ddelta);
        if (in.z.data != nullptr) call(x.dz, shared.dz);
        if (has_delta_a(at)) call(x.ddelta_a, shared.ddelta_a);
    }
    template <DType kType, class Bits, class Unit>
    __device__ __forceinline__ void store_as(const Outputs<Unit::kSize>& x, const Unit& at, int first) const {
        each_output(x, at, [&](const float(&x)[Unit::kSize], const Rows& rows) {
            char* to = address(rows, at, first);
            const unsigned channel_stride = rows.channel_stride, token_stride = rows.token_stride;
#pragma unroll
            for (int i = 0; i < Unit::kSize; i += 4) {
                const RawVector<4> bits = RawVector<4>::of<kType>({x[i], x[i + 1], x[i + 2], x[i + 3]});
                if (at.shape != Shape::strided)
                    bits.store(offset_by(to, i / 4 * kRows, channel_stride), kType);
                else
                    bits.template store_each<Bits>(at.count,
                                                   [&](int i) { return offset_by(to, i * kTokenStep, token_stride); });
            }
        });
    }
    template <class Unit>
    __device__ __forceinline__ void store(const Outputs<Unit::kSize>& x, const Unit& at, int first) const {
        if (at.type == DType::bf16)
            store_as<DType::bf16, unsigned short>(x, at, first);
        else if (!kIsNarrow && at.type == DType::f32)
            store_as<DType::f32, unsigned>(x, at, first);
        else
            store_as<DType::f16, unsigned short>(x, at, first);
    }
};

}  // namespace gdn_cuda::scan
