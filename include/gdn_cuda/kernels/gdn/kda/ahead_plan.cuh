// Configuration, shared memory and arguments of gdn/kda_ahead, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/own_plan.cuh>
#include <gdn_cuda/kernels/gdn/kda/prepare_plan.cuh>

namespace gdn_cuda::gdn {

struct KdaAheadConfig {
    DType io, gate;  // as KdaPrepareConfig has them

    constexpr bool operator==(const KdaAheadConfig&) const = default;

    GDN_FIELDS(io, gate)

    GDN_HOST_DEVICE constexpr KdaPrepareConfig preparer() const { return {.io = io, .gate = gate}; }
    GDN_HOST_DEVICE constexpr ChunkedConfig owner() const { return KdaOwnConfig{.io = io}.block(); }
    GDN_HOST_DEVICE constexpr int threads() const { return owner().threads(); }
};

constexpr int kKdaHalves = 2;  // a block's, each of which prepares one record after another

// How many words KdaAheadArgs::counters has.
constexpr int kKdaAheadCounters = 2;

// Shared memory of a half of a block that prepares.
struct KdaHalfPlan {
    KdaPreparePlan prepare;
    // The record that the half prepares, or has prepared and announces next; nullptr before the first.
    KdaRecord* record;
    unsigned* flag;
    unsigned flags;
    unsigned next;   // the record that the half takes next
    unsigned last;   // the first that it does not take
    unsigned place;  // the block's, in the first half's memory
};

struct KdaAheadArgs {
    KdaPrepareArgs prepare;  // without `taken`; flags are 0 before, and KdaFlags with kKdaReady once a record is there
    KdaOwnArgs own;          // the same records and flags; one window, without segments
    unsigned* counters;      // zeros before: blocks that have started, records that halves have taken
    int preparers;           // blocks that prepare until all records have been taken
    unsigned first_records;  // so many are taken before blocks that own rows stop preparing

    GDN_HOST_DEVICE unsigned records() const { return static_cast<unsigned>(prepare.per_head) * prepare.call.heads; }
};

}  // namespace gdn_cuda::gdn
