// Prefetches own elements (hyena/tile_layouts.cuh) of the next tile to shared memory while one is computed; cp.async needs
// no registers. A thread reads only what it copied itself, so it waits for its own copies alone, made by cp_async_ptx.cuh;
// rows without vectors are copied by the lanes of their warp. A __syncwarp has to separate reads of a tile from the next
// fetch into its slot.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/conv/hyena/tile_layouts.cuh>

namespace gdn_cuda::conv {

template <class T, int kBytes>
__device__ __forceinline__ void fetch(HyenaOwnSlot<kBytes>& to, const HyenaTileRows<T>& access, const HyenaTensor& from,
                                      int tile) {
    static_assert(kBytes == int(sizeof(T)));
    const HyenaRow<T> row(from, access.batch, access.channel);
    T* const items = reinterpret_cast<T*>(to.bytes);
    if (access.vectors && tile + kTileTokens <= access.end) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < EightTokens<T>::kVectors; ++i) {
                const int at = ToeplitzTile<T>::first(0, half) + i * (kEight / EightTokens<T>::kVectors);
                cp_async_16_zfill(static_cast<unsigned>(__cvta_generic_to_shared(items + at)), row.data + tile + at, true);
            }
        return;
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane_of_warp(); i < kTileTokens; i += 32)
        items[i] = tile + i < access.end ? row.data[(tile + i) * row.token] : from_float<T>(0.f);
    __syncwarp();
}
template <class T, int kBytes>
__device__ __forceinline__ typename HyenaTileRows<T>::Own read(const HyenaTileRows<T>&, const HyenaOwnSlot<kBytes>& from) {
    typename HyenaTileRows<T>::Own own;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        own.eights[half].load(reinterpret_cast<const T*>(from.bytes) + ToeplitzTile<T>::first(0, half));
    return own;
}

// Calls visit(vector, address, exists) for a thread's vectors of a tensor; the address is computed once.
template <class T, int kChannels>
__device__ __forceinline__ void for_vectors(const HyenaTileColumns<T, kChannels>& access, const HyenaTensor& x, int tile,
                                            auto&& visit) {
    using Columns = HyenaTileColumns<T, kChannels>;
    const int token = tile + Columns::own_token(0), channel = access.first_channel + Columns::own_channel();
    const bool has_channel = Columns::kVectorsOfToken == 1 || channel < access.channels;
    T* data = static_cast<T*>(x.data) + access.opaque_batch() * x.batch + channel + token * x.token;
#pragma unroll
    for (int vector = 0; vector < Columns::kVectors; ++vector, data += Columns::kStep * x.token)
        visit(vector, data, has_channel && token + vector * Columns::kStep < access.end);
}
template <class T, int kChannels, int kBytes>
__device__ __forceinline__ void fetch(HyenaOwnSlot<kBytes>& to, const HyenaTileColumns<T, kChannels>& access,
                                      const HyenaTensor& from, int tile) {
    static_assert(kBytes == int(sizeof(T)));
    const unsigned slot = static_cast<unsigned>(__cvta_generic_to_shared(to.bytes + 16 * lane_of_warp()));
    for_vectors(access, from, tile,
                [&](int vector, const T* data, bool exists) { cp_async_16_zfill(slot + vector * 32 * 16, data, exists); });
}
template <class T, int kChannels, int kBytes>
__device__ __forceinline__ typename HyenaTileColumns<T, kChannels>::Own read(const HyenaTileColumns<T, kChannels>&,
                                                                             const HyenaOwnSlot<kBytes>& from) {
    using Columns = HyenaTileColumns<T, kChannels>;
    typename Columns::Own own;
#pragma unroll
    for (int vector = 0; vector < Columns::kVectors; ++vector)
        reinterpret_cast<Raw<16>&>(own.items[vector * Columns::kVector]).load(from.bytes + 16 * (vector * 32 + lane_of_warp()));
    return own;
}

template <class T>
__device__ __forceinline__ void store(const typename HyenaTileRows<T>::Own& from, const HyenaTileRows<T>& access,
                                      const HyenaTensor& to, int tile) {
    access.store(from, to, tile);
}
template <class T, int kChannels>
__device__ __forceinline__ void store(const typename HyenaTileColumns<T, kChannels>::Own& from,
                                      const HyenaTileColumns<T, kChannels>& access, const HyenaTensor& to, int tile) {
    for_vectors(access, to, tile, [&](int vector, T* data, bool exists) {
        if (exists)
            reinterpret_cast<const Raw<16>&>(from.items[vector * HyenaTileColumns<T, kChannels>::kVector]).store_global(data);
    });
}

}  // namespace gdn_cuda::conv
