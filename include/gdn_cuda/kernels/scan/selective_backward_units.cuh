// How scan/selective_backward moves elements between memory and its tiles: four at a time, those of the next unit in flight.
#pragma once

#include <gdn_cuda/kernels/scan/four.cuh>
#include <gdn_cuda/kernels/scan/selective_backward_block.cuh>

namespace gdn_cuda::scan {

template <SelectiveBackwardConfig kConfig>
struct BackwardUnits : BackwardBlock<kConfig> {
    using Block = BackwardBlock<kConfig>;
    using Block::along, Block::global, Block::in_row, Block::swizzle;
    using Block::args, Block::in, Block::place, Block::shared;
    using Block::kChannels, Block::kTokens, Block::kUnits;
    using typename Block::Config, typename Block::Shared, typename Block::Tile;

    // Four elements of a tile. In memory they are a vector, of tokens or of channels; or, where the host has found no vectors
    // or the tile is ragged, tokens of one channel so far apart that neighbouring lanes have neighbours in memory. Each of
    // these is read and written alone.
    enum class Shape { tokens, channels, apart };
    struct Unit {
        int channel, token;  // of the first
        Shape shape;
        int count;  // of them exist, the first ones
    };
    static constexpr int kApart = kStateChunk / 4;

    __device__ __forceinline__ Shape shape_of(int tokens) const {
        if (!args.rows_are_vectors || place.channels < kChannels || tokens < kStateChunk) return Shape::apart;
        return args.along_tokens ? Shape::tokens : Shape::channels;
    }
    // Of a thread; `tokens` are in the tile. Lanes meet in no bank of a tile.
    __device__ __forceinline__ Unit unit(int i, Shape shape, int tokens) const {
        constexpr unsigned kRow = kStateChunk / 4, kColumn = kChannels / 4, kEights = kChannels / 8;
        const unsigned thread = thread_again(), index = thread + i * Config::kThreads, lane = thread % 32, warp = thread / 32;
        const auto at = [&](unsigned channel, unsigned token) {
            return Unit{static_cast<int>(channel), static_cast<int>(token), shape, 4};
        };
        if (shape == Shape::tokens) return at(index / kRow, index % kRow * 4);
        if (shape == Shape::channels) return at(index % kColumn * 4, index / kColumn);
        // 16 tokens of channels four apart, or four of eight channels.
        const unsigned group = warp + i * Config::kWarps;
        Unit unit = args.along_tokens ? at(warp + lane / 16 * 4 + i * 8, lane % 16)
                                      : at(lane % 8 + group % kEights * 8, lane / 8 + group / kEights * 4);
        unit.count = unit.channel < place.channels ? (tokens - unit.token + kApart - 1) / kApart : 0;
        return unit;
    }

    // ---- Tiles

    // Calls with each element's number, channel and place in a row. What is added to a channel or a token carries into nothing.
    template <class F>
    __device__ __forceinline__ static void each_element(const Unit& unit, const F& call) {
        const int row = in_row(unit.channel, unit.token);
        if (unit.shape == Shape::channels) {
#pragma unroll
            for (int i = 0; i < 4; ++i) call(i, unit.channel + i, row ^ swizzle(i));
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) call(i, unit.channel, row ^ i * kApart);
        }
    }
    __device__ __forceinline__ static float4& vector(Tile tile, const Unit& unit) {
        return *reinterpret_cast<float4*>(&tile[unit.channel][in_row(unit.channel, unit.token)]);
    }
    template <int kTiles>
    __device__ __forceinline__ static void put(const Tile (&tiles)[kTiles], const Unit& to, const float (&x)[kTiles][4]) {
        if (to.shape == Shape::tokens) {
#pragma unroll
            for (int t = 0; t < kTiles; ++t) vector(tiles[t], to) = {x[t][0], x[t][1], x[t][2], x[t][3]};
        } else {
            each_element(to, [&](int i, int channel, int at) {
#pragma unroll
                for (int t = 0; t < kTiles; ++t) tiles[t][channel][at] = x[t][i];
            });
        }
    }
    template <int kTiles>
    __device__ __forceinline__ static void get(float (&x)[kTiles][4], const Tile (&tiles)[kTiles], const Unit& from) {
        if (from.shape == Shape::tokens) {
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
                const float4 y = vector(tiles[t], from);
                x[t][0] = y.x, x[t][1] = y.y, x[t][2] = y.z, x[t][3] = y.w;
            }
        } else {
            each_element(from, [&](int i, int channel, int at) {
#pragma unroll
                for (int t = 0; t < kTiles; ++t) x[t][i] = tiles[t][channel][at];
            });
        }
    }
    // D or bias of the channels of a unit.
    __device__ __forceinline__ static void per_channel(float (&to)[4], const float* from, const Unit& unit) {
        const int apart = unit.shape == Shape::channels ? 1 : 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = from[unit.channel + i * apart];
    }
    // Σ C x, where the walk has left it.
    __device__ __forceinline__ void get_outputs(float (&y)[4], const Unit& from) const {
        const float* first = &shared.checkpoint[from.token / kTokens][from.channel][from.token % kTokens];
        constexpr int kChannel = Shared::kCheckpoint, kToken = kChannels * kChannel / kTokens;  // apart, in eight tokens
        const int apart = from.shape == Shape::tokens ? 1 : from.shape == Shape::channels ? kChannel : kApart * kToken;
#pragma unroll
        for (int i = 0; i < 4; ++i) y[i] = first[i * apart];
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
    // The host has seen to it that strides fit.
    __device__ __forceinline__ static char* address(const Rows& rows, const Unit& at, int first) {
        return along(along(global(rows.begin), at.channel, rows.of_channel), first + at.token, rows.of_token);
    }
    struct InFlight {
        Four u, delta, grad_out, z, delta_a;
    };
    struct Floats {
        float u[4], delta[4], grad_out[4], z[4], delta_a[4];
    };
    template <class F>
    __device__ __forceinline__ void each_input(InFlight& x, const F& call) const {
        call(x.u, shared.u), call(x.delta, shared.delta), call(x.grad_out, shared.grad_out);
        if (in.z.data != nullptr) call(x.z, shared.z);
        if (in.delta_a.data != nullptr) call(x.delta_a, shared.delta_a);
    }
    template <class Bits>
    __device__ __forceinline__ void load_each(InFlight& x, const Unit& at, int first) const {
        each_input(x, [&](Four& x, const Rows& rows) {
            const char* from = address(rows, at, first);
            const unsigned of_token = rows.of_token;
            x.load_each<Bits>(at.count, [&](int i) { return along(from, i * kApart, of_token); });
        });
    }
    __device__ __forceinline__ void load(InFlight& x, const Unit& at, int first) const {
        if (at.shape != Shape::apart)
            each_input(x, [&](Four& x, const Rows& rows) { x.load(address(rows, at, first), args.io); });
        else if (args.io == DType::f32)
            load_each<unsigned>(x, at, first);
        else
            load_each<unsigned short>(x, at, first);
    }
    template <DType kType, bool kEach>
    __device__ __forceinline__ static void convert(Floats& x, const InFlight& raw) {
        raw.u.template to_floats<kType, kEach>(x.u);
        raw.delta.template to_floats<kType, kEach>(x.delta);
        raw.grad_out.template to_floats<kType, kEach>(x.grad_out);
        raw.z.template to_floats<kType, kEach>(x.z);
        raw.delta_a.template to_floats<kType, kEach>(x.delta_a);
    }
    template <bool kEach>
    __device__ __forceinline__ void convert(Floats& x, const InFlight& raw) const {
        if (args.io == DType::bf16)
            convert<DType::bf16, kEach>(x, raw);
        else if (args.io == DType::f32)
            convert<DType::f32, kEach>(x, raw);
        else
            convert<DType::f16, kEach>(x, raw);
    }
    __device__ __forceinline__ void convert(Floats& x, const InFlight& raw, Shape shape) const {
        if (shape != Shape::apart)
            convert<false>(x, raw);
        else
            convert<true>(x, raw);
    }
    // Calls with the elements of each unit, while those of the next are in flight.
    template <class F>
    __device__ __forceinline__ void for_units(int first, int tokens, const F& call) const {
        const Shape shape = shape_of(tokens);
        InFlight raw{};
        load(raw, unit(0, shape, tokens), first);
#pragma unroll 1
        for (int i = 0; i < kUnits; ++i) {
            Floats x;
            convert(x, raw, shape);
            if (i + 1 < kUnits) load(raw, unit(i + 1, shape, tokens), first);
            call(x, unit(i, shape, tokens));
        }
    }

    struct Outputs {
        float du[4], ddelta[4], dz[4], ddelta_a[4];
    };
    struct OutputBits {
        Four du, ddelta, dz, ddelta_a;
    };
    template <DType kType>
    __device__ __forceinline__ static void convert(OutputBits& bits, const Outputs& x) {
        bits = {Four::of<kType>(x.du), Four::of<kType>(x.ddelta), Four::of<kType>(x.dz), Four::of<kType>(x.ddelta_a)};
    }
    template <class F>
    __device__ __forceinline__ void each_output(const OutputBits& x, const F& call) const {
        call(x.du, shared.du), call(x.ddelta, shared.ddelta);
        if (in.z.data != nullptr) call(x.dz, shared.dz);
        if (in.delta_a.data != nullptr) call(x.ddelta_a, shared.ddelta_a);
    }
    template <class Bits>
    __device__ __forceinline__ void store_each(const OutputBits& x, const Unit& at, int first) const {
        each_output(x, [&](const Four& x, const Rows& rows) {
            char* to = address(rows, at, first);
            const unsigned of_token = rows.of_token;
            x.store_each<Bits>(at.count, [&](int i) { return along(to, i * kApart, of_token); });
        });
    }
    __device__ __forceinline__ void store(const Outputs& x, const Unit& at, int first) const {
        OutputBits bits;
        if (args.io == DType::bf16)
            convert<DType::bf16>(bits, x);
        else if (args.io == DType::f32)
            convert<DType::f32>(bits, x);
        else
            convert<DType::f16>(bits, x);
        if (at.shape != Shape::apart)
            each_output(bits, [&](const Four& x, const Rows& rows) { x.store(address(rows, at, first), args.io); });
        else if (args.io == DType::f32)
            store_each<unsigned>(bits, at, first);
        else
            store_each<unsigned short>(bits, at, first);
    }
};

}  // namespace gdn_cuda::scan
