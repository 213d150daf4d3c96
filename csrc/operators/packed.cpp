#include "packed.hpp"

namespace gdn_cuda {

void check_cu_seqlens(const Checks& check, const View& cu_seqlens, int64_t tokens, const View& as, const char* as_name) {
    check.rank("cu_seqlens", cu_seqlens, 1, "(sequences + 1,)");
    const DType type = check.dtype("cu_seqlens", cu_seqlens, {DType::i32, DType::i64});
    check.device("cu_seqlens", cu_seqlens, as, as_name);
    GDN_REQUIRE(check, cu_seqlens.size(0) >= 1, "cu_seqlens", "at least one element", "none");
    check.last_contiguous("cu_seqlens", cu_seqlens);
    if (!cu_seqlens.is_cpu()) return;
    const auto offset = [&](int64_t i) {
        return type == DType::i32 ? static_cast<const int32_t*>(cu_seqlens.data)[i]
                                  : static_cast<const int64_t*>(cu_seqlens.data)[i];
    };
    for (int64_t i = 0; i < cu_seqlens.size(0); ++i) {
        const bool follows = i == 0 ? offset(0) == 0 : offset(i) >= offset(i - 1);
        GDN_REQUIRE(check, follows && offset(i) <= tokens, "cu_seqlens",
                    fmt::format("offsets that start at 0, never decrease and end by {}", tokens),
                    fmt::format("{} at position {}", offset(i), i));
    }
}

}  // namespace gdn_cuda
