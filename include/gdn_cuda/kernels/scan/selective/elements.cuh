// The elements of a tile in a selective scan: u, δ, z and the output. A thread prepares eight, contiguous along tokens or along
// channels, whichever is contiguous in memory: it turns u and δ into the step and the input of the recurrence, fp32 in shared
// memory, and later stores the outputs of the same elements.
//
// Loads of the next tile are in flight meanwhile. In a whole, aligned tile a thread fetches one vector. Otherwise rows are read
// as aligned 16-byte vectors (unaligned_vector.cuh). Along tokens, each thread fetches the vectors that begin with or before
// its elements, and the last thread of a row one more; the end of a thread's elements is in the next thread's first vector.
// Along channels, a thread loads all vectors that hold its elements when it needs them. Outputs along tokens are shifted back
// into aligned vectors.
#pragma once

#include <gdn_cuda/kernels/common/unaligned_vector.cuh>
#include <gdn_cuda/kernels/scan/discretization.cuh>
#include <gdn_cuda/kernels/scan/selective/tile.cuh>

namespace gdn_cuda::scan {

// Shared has a tile's rows and the buffers of loads in flight, Args has the tensors, as in selective_forward.
template <class Shared, class Args>
struct SelectiveElements {
    static constexpr int kChannels = Shared::kChannels, kTokens = Shared::kTokens;
    static constexpr Transition kTransition = Shared::kConfiguration.transition;
    using Own = TileVector<kChannels, kTokens>;
    using Vector = RawVector<8, Shared::kConfiguration.is_narrow>;
    using Read = UnalignedVector<Shared::kConfiguration.is_narrow>;

    const Args& args;
    Shared& shared;
    Own own;             // position in a tile
    int whole, aligned;  // first token after the whole tiles, and after those that are aligned vectors too
    char* addresses[4];  // the thread's elements in the first tile
    enum Address { at_u, at_delta, at_z, at_out };

    enum InFlight { u_even, u_odd, delta, z };
    __device__ __forceinline__ Vector& in_flight(int i) const {
        return reinterpret_cast<Vector&>(shared.elements_in_flight[i][threadIdx.x]);
    }
    __device__ __forceinline__ static int u_of(int tile) { return u_even + (tile & kTokens) / kTokens; }

    enum Rows { kStep, kInput, kSize };
    __device__ __forceinline__ float* row(int rows, int channel) const { return &shared.rows[rows][channel * Shared::kPitch]; }

    // ---- In memory

    // Address of the thread's first element.
    __device__ __forceinline__ char* address(const ChannelRows& x, const SelectivePlace& place, const Own& own,
                                             int tile) const {
        const i64 offset =
            place.batch * x.batch + (place.channel + own.channel) * x.channel + (place.start + tile + own.token) * x.token;
        return static_cast<char*>(x.data) + (offset << (Vector::is_wide(args.io) ? 2 : 1));
    }
    // Address in a tile, from that in the first tile. The host has checked that the token stride fits.
    template <class Kind, class Byte>
    __device__ __forceinline__ Byte* in_tile(Kind kind, Byte* first, const ChannelRows& x, int tile) const {
        const int token_stride = kind.is_plain_along_tokens ? 1 : static_cast<int>(x.token);
        return first + static_cast<i64>(tile) * (token_stride << (Vector::is_wide(kind.type(args.io)) ? 2 : 1));
    }
    // Recomputed for rare paths, so that it takes no registers in the recurrence.
    __device__ __forceinline__ Own recomputed_own() const { return Own::for_thread(opaque(threadIdx.x), args.along_tokens); }
    // How many elements of the row exist from the thread's first one on; negative if none.
    __device__ __forceinline__ int left(int tile) const {
        constexpr int kNone = -8;
        const Own own = recomputed_own();
        const SelectivePlace& place = shared.place;
        const int channels = place.channels - own.channel, tokens = place.length - tile - own.token;
        return args.along_tokens ? (channels > 0 ? tokens : kNone) : (tokens > 0 ? channels : kNone);
    }
    __device__ __forceinline__ int count(int tile) const { return tile < whole ? 8 : left(tile); }
    // Along tokens, the last 16-byte vector of a row is copied to the padding after that row of the tile.
    __device__ __forceinline__ static bool is_last_of_row(const Own& own) { return own.token == kTokens - 8; }
    __device__ __forceinline__ uint4* row_padding(int tensor, const Own& own) const {
        return reinterpret_cast<uint4*>(row(tensor, own.channel) + kTokens);
    }
    enum Padding { padding_u, padding_delta, padding_z, padding_out };

    template <class Kind>
    __device__ __forceinline__ void fetch(Kind kind, int slot, int tensor, const char* first, const ChannelRows& x,
                                          int tile) const {
        const char* from = in_tile(kind, first, x, tile);
        if (kind.is_plain || tile < aligned) {
            Vector::fetch(in_flight(slot), from, kind.type(args.io));
            return;
        }
        const Read read = Read::of(from, count(tile), args.io);
        if (args.along_tokens) {
            const Own own = recomputed_own();
            read.fetch(in_flight(slot), args.io);
            if (is_last_of_row(own)) read.fetch_last(*row_padding(tensor, own), args.io);
        } else if (read.before == 0) {
            read.fetch(in_flight(slot), args.io);
        }
    }
    // The thread's vector; call after cp_async_wait.
    template <class Kind>
    __device__ __forceinline__ Vector loaded(Kind kind, int slot, int tensor, const char* first, const ChannelRows& x,
                                             int tile) const {
        if (kind.is_plain || tile < aligned) return in_flight(slot);
        const char* from = in_tile(kind, first, x, tile);
        __syncwarp();
        Vector found = in_flight(slot);
        if (args.along_tokens) {
            const Own own = recomputed_own();
            const uint4& next = is_last_of_row(own) ? *row_padding(tensor, own) : (&in_flight(slot))[1].vectors[0];
            found = Read::joined(found, next, Read::before_of(from), args.io);
        } else if (Read::before_of(from) != 0) {
            found = Read::of(from, count(tile), args.io).load(args.io);
        }
        __syncwarp();  // the next fetch overwrites it
        return found;
    }

    __device__ __forceinline__ void begin(const SelectivePlace& place) {
        whole = place.channels == kChannels ? place.length / kTokens * kTokens : 0;
        aligned = args.rows_are_aligned ? whole : 0;
        addresses[at_u] = opaque(address(args.in.u, place, own, 0));
        addresses[at_delta] = opaque(address(args.in.delta, place, own, 0));
        addresses[at_z] = opaque(address(args.in.z, place, own, 0));
        if (threadIdx.x < kChannels) {
            const int c = threadIdx.x;
            shared.bias[c] = c < place.channels && args.in.delta_bias != nullptr ? args.in.delta_bias[place.channel + c] : 0.f;
        }
    }
    // First token after the plain tiles.
    __device__ __forceinline__ int plain() const {
        const bool may_be = Shared::kConfiguration.is_narrow ? args.io == DType::bf16 : args.along_tokens;
        return may_be && args.in.delta_a.data == nullptr ? aligned : 0;
    }
    template <class Kind>
    __device__ __forceinline__ void load(Kind kind, int tile) const {
        fetch(kind, u_of(tile), padding_u, addresses[at_u], args.in.u, tile);
        fetch(kind, delta, padding_delta, addresses[at_delta], args.in.delta, tile);
    }
    template <class Kind>
    __device__ __forceinline__ void load_z(Kind kind, int tile) const {
        if (args.in.z.data != nullptr) fetch(kind, z, padding_z, addresses[at_z], args.in.z, tile);
    }

    // ---- Steps and inputs

    // Each stage handles all eight elements, so that their special-function instructions overlap.
    template <class Kind>
    __device__ __forceinline__ void prepare(Kind kind, int tile) const {
        const DType io = kind.type(args.io);
        const Vector u = loaded(kind, u_of(tile), padding_u, addresses[at_u], args.in.u, tile);
        if (!kind.is_plain && tile >= aligned) in_flight(u_of(tile)) = u;  // for the outputs
        float input[8], size[8], bias[8], step[8];
        u.to_floats(io, input);
        loaded(kind, delta, padding_delta, addresses[at_delta], args.in.delta, tile).to_floats(io, size);
        load_per_channel(kind, shared.bias, bias);
#pragma unroll
        for (int i = 0; i < 8; ++i) size[i] += bias[i];
        if (args.in.delta_softplus) {
#pragma unroll
            for (float& x : size) x = softplus_fast(x);
        }
        if (kTransition == Transition::exponential && args.input_times_delta) {
#pragma unroll
            for (int i = 0; i < 8; ++i) input[i] *= size[i];
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) step[i] = kTransition == Transition::s7 ? -1.f / fmaf(size[i], size[i], 0.5f) : size[i];
        constexpr bool kReadsDeltaA = kTransition != Transition::s7 && kTransition != Transition::rglru;
        if (kReadsDeltaA && !kind.is_plain && args.in.delta_a.data != nullptr)  // rare, so not prefetched
            Read::of(address(args.in.delta_a, shared.place, recomputed_own(), tile), count(tile), args.io)
                .load(args.io)
                .to_floats(args.io, step);
        if (!kind.is_plain && tile >= whole) {  // a step of 0 leaves the states as they are
            const int count = left(tile);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (i >= count) step[i] = input[i] = size[i] = 0.f;
        }
        put(kind, kStep, step);
        put(kind, kInput, input);
        if constexpr (has_size(kTransition)) put(kind, kSize, size);
    }
    template <class Kind>
    __device__ __forceinline__ void load_per_channel(Kind kind, const float (&per_channel)[kChannels], float (&x)[8]) const {
        if (kind.along_tokens(args.along_tokens)) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = per_channel[own.channel];
        } else {
            load_shared(x, &per_channel[own.channel]);
        }
    }
    template <class Kind>
    __device__ __forceinline__ void put(Kind kind, int rows, const float (&x)[8]) const {
        float* to = row(rows, own.channel) + swizzled<kChannels>(own.channel, own.token);
        if (kind.along_tokens(args.along_tokens)) {
            reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
            reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) to[i * Shared::kPitch] = x[i];
        }
    }

    // ---- Outputs

    __device__ __forceinline__ void begin_outputs(const SelectivePlace& place) {
        addresses[at_out] = opaque(address(args.out, place, own, 0));
        if (threadIdx.x < kChannels) {
            const int c = threadIdx.x;
            shared.D[c] = c < place.channels && args.in.D != nullptr ? args.in.D[place.channel + c] : 0.f;
        }
    }
    __device__ __forceinline__ static float ungated(float y, float u, float D) {
        if constexpr (Shared::kConfiguration.is_complex) y *= 2.f;
        return fmaf(D, u, y);
    }
    // Adds up the Σ C x of each lane, and stores the outputs of the elements that the thread prepared.
    template <class Kind>
    __device__ __forceinline__ void finish(Kind kind, int tile) const {
        const DType io = kind.type(args.io);
        float y[8], u[8], gate_input[8], D[8];
        const float* from = row(Shared::kFirstSum, own.channel) + swizzled<kChannels>(own.channel, own.token);
#pragma unroll
        for (int part = 0; part < Shared::kSums; ++part) {
            float x[8];
            if (kind.along_tokens(args.along_tokens)) {
                load_shared(x, from);
            } else {
#pragma unroll
                for (int i = 0; i < 8; ++i) x[i] = from[i * Shared::kPitch];
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) y[i] = part == 0 ? x[i] : y[i] + x[i];
            from += sizeof(shared.rows[0]) / sizeof(float);
        }
        load_per_channel(kind, shared.D, D);
        in_flight(u_of(tile)).to_floats(io, u);
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] = ungated(y[i], u[i], D[i]);
        if (args.in.z.data != nullptr) {
            loaded(kind, z, padding_z, addresses[at_z], args.in.z, tile).to_floats(io, gate_input);
#pragma unroll
            for (int i = 0; i < 8; ++i) y[i] *= silu_fast(gate_input[i]);
        }
        const Vector found = Vector::of(io, y);
        char* to = in_tile(kind, addresses[at_out], args.out, tile);
        if (kind.is_plain || tile < aligned)
            found.store(to, io);
        else if (args.along_tokens && tile + kTokens <= shared.place.length)
            store_shifted(found, to, tile);
        else
            found.store_some(to, args.io, 0, left(tile));
    }
    // For whole tiles of unaligned rows. A thread stores the aligned vectors that begin in its eight elements; the last one
    // ends in the next thread's elements. The last thread of a row keeps its rest for the first thread's elements of the next
    // tile.
    __device__ __forceinline__ void store_shifted(const Vector& found, char* to, int tile) const {
        const Own own = recomputed_own();
        const bool wide = Vector::is_wide(args.io), exists = own.channel < shared.place.channels, is_last = is_last_of_row(own);
        const int size = wide ? 4 : 2, before = -static_cast<int>(reinterpret_cast<unsigned long long>(to)) & 15,
                  skipped = before / size;
        Vector& mine = in_flight(u_of(tile));  // u has been read
        mine = found;
        __syncwarp();
        const uint4 next = (is_last ? (&mine)[1 - kTokens / 8] : (&mine)[1]).vectors[0];
        uint4 own_last = found.vectors[0];
        auto* vectors = reinterpret_cast<uint4*>(to + before);
        if constexpr (!Shared::kConfiguration.is_narrow)
            if (wide) {
                if (exists) *vectors++ = joined(found.vectors[0], found.vectors[1], before);
                own_last = found.vectors[1];
            }
        if (is_last) {
            uint4& kept = *row_padding(padding_out, own);
            const uint4 earlier = kept;
            kept = own_last;
            own_last = earlier;
            vectors -= kTokens * size / 16;
        }
        if (exists && !(is_last && tile == 0)) *vectors = joined(own_last, next, before);
        if (exists && own.token == 0 && tile == 0) found.store_some(to, args.io, 0, skipped);
        if (exists && is_last && tile + 2 * kTokens > shared.place.length)
            found.store_some(to, args.io, (wide ? 4 : 0) + skipped, 8);
        __syncwarp();  // the next u overwrites `mine`
    }
};

}  // namespace gdn_cuda::scan
