// structured/toeplitz_eliminate: the elimination that toeplitz_gko.cuh explains, by a thread block cluster, for systems too
// long for one block. structured/toeplitz_generators computes its input; the caller transforms its output.
//
// Half of a block's threads hold rows, the other half columns; generators and right-hand sides are in registers. Step k:
//
//     rows     wait for all blocks' candidates | choose the pivot | update | next column | best row per warp |
//              named barrier | send the block's best row, divided by the pivot, to every block's inbox
//     columns  wait for the candidates | named barrier | update column k + 2, send it to every block's inbox | other columns
//
// So blocks communicate once per step, without a cluster barrier: an mbarrier in the destination's shared memory counts the
// bytes of st.async. When a block has all candidates of step k, every block has read those of step k - 1, so two inboxes
// suffice. Step k needs the right generators of column k + 1 as they are before that step: the threads that hold the column
// sent them in step k - 1, and every thread updates both generators itself.
//
// Left generators are premultiplied by the conjugate of their row's node and right generators halved, so an entry is their
// product and one more fma per real or imaginary part; the extra work in the update is off the critical path to the next
// column.
//
// info: 0, or k where pivot k is zero or NaN.
//
// Bound: latency of a step, some twenty dependent fp64 operations, two barriers and the transfer between blocks, a quarter of
// it. On an H200 a step takes 0.68 us with 128 rows per block, 0.75 to 0.85 with 256 and 0.97 to 0.99 with 512, with the fp64
// units busy a third of the time; 8192 rows take 8.1 ms.
#pragma once

#include <gdn_cuda/kernels/common/cluster.cuh>
#include <gdn_cuda/kernels/common/complex.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>
#include <gdn_cuda/kernels/structured/toeplitz/eliminate_plan.cuh>

namespace gdn_cuda::structured {

template <ToeplitzEliminateConfig kConfig>
struct ToeplitzEliminate {
    using Shared = ToeplitzEliminateSharedPlan<kConfig>;
    using Stored = typename Shared::Number;
    using Number = ComplexNumber<double>;
    using NamedBarrier = cutlass::arch::NamedBarrier;
    static constexpr int kColumns = kConfig.columns, kNoNode = -1;
    static constexpr int kCandidateBarrier = 0;  // named barrier ID
    static constexpr unsigned kAll = ~0u;
    static constexpr int kSenders = 32 / kConfig.blocks;  // lanes per warp that store to the same block
    static_assert(32 % kConfig.blocks == 0 && kConfig.warps() <= 32);

    const ToeplitzEliminateArgs& args;
    Shared& shared;
    int system, first_column, rank, lane, warp;  // warp: index among the warps that hold rows, or columns
    unsigned peer;                               // cluster address of the shared memory this lane sends to
    Number right[2];                             // right generators of the step's column, before its update

    struct Row {  // a row of C or of the identity; left is premultiplied by back, the node's conjugate
        Number left[2], rhs[kColumns], back, entry;  // entry: in the step's column
        int node;
    };
    struct Column {
        Number right[2], back;
    };
    // Row of the pivot.
    struct Pivot {
        Number left[2];
        const typename Shared::Candidate* all;
        int node;
    };

    __device__ __forceinline__ static Number number(const Stored& x) { return {x.re, x.im}; }
    __device__ __forceinline__ static Stored stored(const Number& x) { return {x.re, x.im}; }
    __device__ __forceinline__ Number back_from(int node) const { return unit_at(static_cast<double>(node) / args.n); }
    __device__ __forceinline__ int thread() const { return 32 * warp + lane; }
    __device__ __forceinline__ int index_at(int s) const { return (s * kConfig.blocks + rank) * kConfig.threads + thread(); }
    __device__ __forceinline__ Barrier& inbox_mbarrier(int k) const { return barrier(shared.inbox_mbarriers[k % 2]); }
    __device__ __forceinline__ Number generator(const void* of, int g, int i) const {
        return number(static_cast<const Stored*>(of)[(2LL * system + g) * args.n + i]);
    }

    // Matrix entry from the generators of its row and column.
    __device__ __forceinline__ Number entry(const Number (&left)[2], int node, const Number (&right)[2], int column) const {
        int distance = 2 * column + 1 - node;
        if (distance < 0) distance += 2 * args.n;
        const bool mirrored = distance > args.n;
        const double near = shared.cotangents[mirrored ? 2 * args.n - distance : distance], cotangent = mirrored ? -near : near;
        const Number sum = (left[0] * right[0]).plus(left[1], right[1]);
        return {sum.re + sum.im * cotangent, sum.im - sum.re * cotangent};
    }
    __device__ __forceinline__ void update(Number (&of)[2], int column, const Pivot& pivot) const {
        const Number factor = entry(pivot.left, pivot.node, of, column);
        of[0] = of[0].minus(right[0], factor);
        of[1] = of[1].minus(right[1], factor);
    }

    // Called by a whole warp: sends `outbox`, which one of its threads filled, to all blocks.
    template <class Sent>
    __device__ __forceinline__ void send_all(const Sent& from, const Sent& into, int k) const {
        constexpr int kVectors = sizeof(Sent) / sizeof(Vector16);
        const auto there = [&](const void* here) { return peer + shared_address(here) - shared_address(&shared); };
        __syncwarp();
#pragma unroll
        for (int begin = 0; begin < kVectors; begin += kSenders) {
            const int vector = begin + lane / kConfig.blocks;
            if (vector < kVectors)
                st_async(reinterpret_cast<const Vector16*>(&from)[vector], there(&into) + vector * sizeof(Vector16),
                         there(&inbox_mbarrier(k)));
        }
        __syncwarp();
    }
    __device__ __forceinline__ void expect(int k) const {
        constexpr int kCandidateBytes = kConfig.blocks * sizeof(typename Shared::Candidate);
        if (k < args.n)
            inbox_mbarrier(k).arrive_and_expect_tx(kCandidateBytes +
                                                   (k + 1 < args.n ? static_cast<int>(sizeof(typename Shared::Column)) : 0));
    }

    // A row's key is the upper half of max(|re|, |im|) of its entry, which is precise enough to choose a pivot. The low five
    // bits hold the owner, so that the first of nearly equal rows wins.
    __device__ __forceinline__ static unsigned key_of(const Number& entry, int place) {
        const auto part = [](double x) { return static_cast<unsigned>(__double2hiint(x)) & 0x7fffffffu; };
        const unsigned size = part(entry.re) > part(entry.im) ? part(entry.re) : part(entry.im);
        return (size & ~31u) + 32 + static_cast<unsigned>(31 - place);
    }
    // Branch-free, unlike a division, so it overlaps with the wait for other warps.
    __device__ __forceinline__ static double reciprocal(double x) {
        double r;
        asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(x));
#pragma unroll
        for (int i = 0; i < 2; ++i) r = fma(r, fma(-x, r, 1.0), r);
        return r;
    }

    // `meanwhile` is work that the candidate depends on but the search for it does not.
    template <class Meanwhile>
    __device__ __forceinline__ void send_candidate(const Row (&rows)[kConfig.slots], int k, const Meanwhile& meanwhile) {
        unsigned key = 0;
        int mine = 0;
        Number entry = rows[0].entry;
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            const unsigned slot_key = key_of(rows[s].entry, lane);
            if (rows[s].node % 2 == 0 && slot_key > key) {
                key = slot_key;
                mine = s;
                entry = rows[s].entry;
            }
        }
        const unsigned best = __reduce_max_sync(kAll, key);
        meanwhile();
        if (lane == 0) shared.keys[k % 2][warp] = best;
        const double square = entry.square();
        const Number inverse = entry.conjugate() * reciprocal(square);
        NamedBarrier::sync(2 * kConfig.threads, kCandidateBarrier);
        unsigned block_key = 0;
#pragma unroll
        for (int w = 0; w < kConfig.warps(); ++w)
            block_key = max(block_key, (shared.keys[k % 2][w] & ~31u) + static_cast<unsigned>(31 - w));
        if (static_cast<int>(31 - block_key % 32) != warp) return;
        auto& outbox = shared.outbox.candidate;
        if (best == 0 ? lane == 0 : key == best) {
            outbox.key = block_key & ~31u;
            outbox.fails = !(square > 0);
#pragma unroll
            for (int s = 0; s < kConfig.slots; ++s) {
                if (s != mine) continue;
                const Row& row = rows[s];
                outbox.node = row.node;
                outbox.place = index_at(s);
#pragma unroll
                for (int g = 0; g < 2; ++g) outbox.left[g] = stored(row.left[g] * inverse);
                outbox.back = stored(row.back);
#pragma unroll
                for (int c = 0; c < kColumns; ++c) outbox.rhs[c] = stored(row.rhs[c] * inverse);
            }
        }
        send_all(outbox, shared.inboxes[k % 2].candidates[rank], k);
    }
    __device__ __forceinline__ Pivot wait_for_pivot(int k) const {
        inbox_mbarrier(k).wait(static_cast<unsigned>(k / 2 % 2));
        if (threadIdx.x == 0) expect(k + 2);
        const auto& candidates = shared.inboxes[k % 2].candidates;
        const unsigned key = lane < kConfig.blocks ? candidates[lane].key : 0;
        const unsigned best = __reduce_max_sync(kAll, key + static_cast<unsigned>(31 - lane));
        const auto& pivot = candidates[31 - best % 32];
        return {{number(pivot.left[0]), number(pivot.left[1])}, &pivot, pivot.node};
    }
    // Applies this step's update to the next step's column.
    __device__ __forceinline__ void advance(Number (&next)[2], const Pivot& pivot, int k) {
        update(next, k + 1, pivot);
        right[0] = next[0];
        right[1] = next[1];
    }

    __device__ __forceinline__ void eliminate_rows() {
        Row rows[kConfig.slots]{};
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            Row& row = rows[s];
            const int i = index_at(s);
            row.node = kNoNode;
            if (i >= args.n) continue;
            row.node = 2 * i;
            row.back = back_from(row.node);
#pragma unroll
            for (int g = 0; g < 2; ++g) row.left[g] = generator(args.left, g, i) * row.back;
#pragma unroll
            for (int c = 0; c < kColumns; ++c)
                if (first_column + c < args.columns)
                    row.rhs[c] = number(static_cast<const Stored*>(
                        args.rhs)[(static_cast<i64>(system) * args.columns + first_column + c) * args.n + i]);
            row.entry = entry(row.left, row.node, right, 0);
        }
        send_candidate(rows, 0, [] {});
        Number entering = back_from(1);  // `back` of the identity's row that enters in this step
        int info = 0;
#pragma unroll 1
        for (int k = 0; k < args.n; ++k) {
            const Pivot pivot = wait_for_pivot(k);
            if (info == 0 && pivot.all->fails) info = k + 1;
            const auto& column = shared.inboxes[k % 2].column;
            Number next[2]{number(column.right[0]), number(column.right[1])};
            const int place = pivot.all->place;
            if (place % (kConfig.blocks * kConfig.threads) / 32 == rank * kConfig.warps() + warp)  // held by this warp
#pragma unroll
                for (int s = 0; s < kConfig.slots; ++s)
                    if (index_at(s) == place)
                        rows[s] = {{}, {}, entering, {1, 0}, 2 * k + 1};  // the identity's row replaces it
            const Number back = number(pivot.all->back).conjugate();
            Number before[kConfig.slots];
            const Number left[2]{pivot.left[0] * back, pivot.left[1] * back};
#pragma unroll
            for (int s = 0; s < kConfig.slots; ++s) {
                Row& row = rows[s];
                before[s] = row.entry;
                const Number turned = row.entry * row.back;
#pragma unroll
                for (int g = 0; g < 2; ++g) row.left[g] = row.left[g].minus(left[g], turned);
            }
            const auto update_rhs = [&] {
#pragma unroll
                for (int c = 0; c < kColumns; ++c) {
                    const Number pivot_rhs = number(pivot.all->rhs[c]);
#pragma unroll
                    for (int s = 0; s < kConfig.slots; ++s) rows[s].rhs[c] = rows[s].rhs[c].minus(pivot_rhs, before[s]);
                }
            };
            if (k + 1 == args.n) {
                update_rhs();
                break;
            }
            entering = number(column.back);
            advance(next, pivot, k);
#pragma unroll
            for (int s = 0; s < kConfig.slots; ++s) rows[s].entry = entry(rows[s].left, rows[s].node, right, k + 1);
            send_candidate(rows, k + 1, update_rhs);
        }
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s)
#pragma unroll
            for (int c = 0; c < kColumns; ++c)
                if (rows[s].node != kNoNode && first_column + c < args.columns)
                    static_cast<Stored*>(args.found)[(static_cast<i64>(system) * args.columns + first_column + c) * args.n +
                                                     rows[s].node / 2] = {-rows[s].rhs[c].re, -rows[s].rhs[c].im};
        if (first_column == 0 && rank == 0 && thread() == 0) static_cast<int*>(args.info)[system] = info;
    }

    // Sends column j to all blocks for step j - 1, if this warp holds it in slot s.
    __device__ __forceinline__ void send_column(const Column& column, int index, int j) const {
        if (j >= args.n || j / 32 != index / 32) return;
        auto& outbox = shared.outbox.columns[warp];
        if (j == index) outbox = {{stored(column.right[0]), stored(column.right[1])}, stored(column.back)};
        send_all(outbox, shared.inboxes[(j - 1) % 2].column, j - 1);
    }
    // Slots before `first` are finished; column k + 2 is in slot `first`.
    template <int kFirst>
    __device__ __forceinline__ void update_columns(Column (&columns)[kConfig.slots], const Pivot& pivot, int first, int k) {
        if constexpr (kFirst + 1 < kConfig.slots)
            if (first > kFirst) return update_columns<kFirst + 1>(columns, pivot, first, k);
#pragma unroll
        for (int s = kFirst; s < kConfig.slots; ++s) {
            update(columns[s].right, min(index_at(s), args.n - 1), pivot);
            if (s == kFirst) send_column(columns[s], index_at(s), k + 2);
        }
    }
    __device__ __forceinline__ void eliminate_columns() {
        Column columns[kConfig.slots]{};
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            const int j = index_at(s);
            if (j >= args.n) continue;
            columns[s].back = back_from(2 * j + 1);
#pragma unroll
            for (int g = 0; g < 2; ++g) columns[s].right[g] = generator(args.right, g, j) * 0.5;
        }
        NamedBarrier::sync(2 * kConfig.threads, kCandidateBarrier);
        send_column(columns[0], index_at(0), 1);
        int first = 0;  // first slot with a column that is still needed
#pragma unroll 1
        for (int k = 0; k + 1 < args.n; ++k) {
            const Pivot pivot = wait_for_pivot(k);
            const auto& column = shared.inboxes[k % 2].column;
            Number next[2]{number(column.right[0]), number(column.right[1])};
            // Rows first: rows and columns compete for the fp64 units, and the next step waits for the rows.
            NamedBarrier::sync(2 * kConfig.threads, kCandidateBarrier);
            while (first + 1 < kConfig.slots && ((first * kConfig.blocks + rank) * kConfig.warps() + warp) * 32 + 31 <= k + 1)
                ++first;
            update_columns<0>(columns, pivot, first, k);
            advance(next, pivot, k);
        }
    }

    __device__ __forceinline__ void run() {
        for (int t = static_cast<int>(threadIdx.x); t <= args.n; t += 2 * kConfig.threads) {
            const Number at = unit_at(static_cast<double>(t) / (2 * args.n));
            shared.cotangents[t] = t == 0 ? 0 : at.re / at.im;  // never read: nodes differ
        }
#pragma unroll
        for (int g = 0; g < 2; ++g) right[g] = generator(args.right, g, 0) * 0.5;
        if (threadIdx.x == 0) {
            for (int k = 0; k < 2; ++k) {
                inbox_mbarrier(k).init(1);
                expect(k);
            }
            cutlass::arch::fence_barrier_init();
        }
        cute::cluster_sync();
        if (static_cast<int>(threadIdx.x) < kConfig.threads)
            eliminate_rows();
        else
            eliminate_columns();
        cute::cluster_sync();  // no block exits while others store into its shared memory
    }
};

template <ToeplitzEliminateConfig kConfig>
__global__ void __launch_bounds__(2 * kConfig.threads, 1)
    toeplitz_eliminate(const __grid_constant__ ToeplitzEliminateArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    const int thread = static_cast<int>(threadIdx.x) % kConfig.threads;
    const int cluster = static_cast<int>(blockIdx.x) / kConfig.blocks;
    const int parts = (args.columns + kConfig.columns - 1) / kConfig.columns;
    ToeplitzEliminate<kConfig> kernel{
        args,
        *reinterpret_cast<ToeplitzEliminateSharedPlan<kConfig>*>(memory),
        cluster / parts,
        cluster % parts * kConfig.columns,
        static_cast<int>(cute::block_rank_in_cluster()),
        thread % 32,
        thread / 32,
        cute::set_block_rank(shared_address(memory), static_cast<unsigned>(thread) % kConfig.blocks)};
    kernel.run();
}

}  // namespace gdn_cuda::structured
