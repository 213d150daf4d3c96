#include "ring.hpp"

#include "../../operators/float64.hpp"

namespace gdn_cuda {

DType check_ring_pool(const Checks& check, RingArgs& args, const RingTensors& x, std::initializer_list<int64_t> shape,
                      const char* layout, const char* columns, DType io, const Batch& batch) {
    const View &pool = x.pool, &scales = x.scales, &fold_mask = x.fold_mask;
    check.shape("state_pool", pool, shape, layout);
    const DType state = dtype_beside(check, "state_pool", pool, io, {DType::f32, DType::bf16, DType::f16, DType::i8});
    check.device("state_pool", pool, batch.like, batch.like_name);
    check_state_scales(check, "state_pool", pool, "state_scales", scales, 1, DType::f32, columns);
    GDN_REQUIRE(check, !scales.defined() || (reinterpret_cast<uintptr_t>(scales.data) % 16 == 0 && scales.stride(0) % 4 == 0),
                "state_scales", "scales of slots that begin at multiples of 16 bytes", stride_text(scales));
    GDN_REQUIRE(check, pool.contiguous_tail(3) && (state == DType::f64 || pool.aligned16()), "state_pool",
                "contiguous states that begin at multiples of 16 bytes", stride_text(pool));
    check.distinct("state_pool", pool);
    args.pool = pool.data;
    args.pool_slot = pool.stride(0);
    if (scales.defined()) args.scales = static_cast<float*>(scales.data), args.scales_slot = scales.stride(0);
    set_sequence_slots(check, args, pool, x.slots, x.accepted, x.null_slot, batch);
    args.fold = x.fold;
    if (!fold_mask.defined()) return state;
    check.shape("fold_mask", fold_mask, {batch.sequences}, "(sequences,)");
    GDN_REQUIRE(check, fold_mask.dtype == torch_numbers.boolean, "fold_mask", "bool", dtype_name(fold_mask));
    check.device("fold_mask", fold_mask, batch.like, batch.like_name);
    check.last_contiguous("fold_mask", fold_mask);
    args.fold_mask = static_cast<const bool*>(fold_mask.data);
    return state;
}

void check_ring_room(const Checks& check, RingArgs& args, const RingTensors& x, const char* argument, const View& ring,
                     const char* layout, const Batch& batch) {
    check.rank(argument, ring, 4, layout);
    const int64_t entries = ring.size(1);
    GDN_REQUIRE(check, entries >= 1 && entries <= kMostRingEntries, argument,
                fmt::format("room for 1 to {} tokens in each slot", kMostRingEntries), shape_text(ring));
    GDN_REQUIRE(check, batch.packed || !x.accepted.defined() || batch.tokens <= entries, batch.like_name,
                fmt::format("at most {} tokens, the room of {} {}", entries, argument, shape_text(ring)),
                shape_text(batch.like));
    args.entries = static_cast<int>(entries);
}

RingTensor check_ring(const Checks& check, const char* argument, const View& ring, std::initializer_list<int64_t> shape,
                      const char* layout, DType type, const Batch& batch) {
    check.shape(argument, ring, shape, layout);
    check.dtype(argument, ring, {type});
    check.device(argument, ring, batch.like, batch.like_name);
    check.distinct(argument, ring);
    if (ring.rank == 4) {
        check.last_contiguous(argument, ring);
        GDN_REQUIRE(check, type == DType::f64 || ring.aligned16(), argument, "rows that begin at multiples of 16 bytes",
                    stride_text(ring));
    }
    return {ring.data, ring.stride(0), ring.stride(1), ring.stride(2)};
}

void check_ring_pending(const Checks& check, RingArgs& args, const RingTensors& x, const Batch& batch) {
    const View& pending = x.pending;
    check.shape("pending", pending, {x.pool.size(0)}, "(slots,)");
    check.dtype("pending", pending, {DType::i32});
    check.device("pending", pending, batch.like, batch.like_name);
    check.distinct("pending", pending);
    check.last_contiguous("pending", pending);
    args.pending = static_cast<unsigned*>(pending.data);
}

}  // namespace gdn_cuda
