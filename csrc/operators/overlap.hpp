// Decides exactly whether strided tensors share memory. An element of a strided tensor is at Σ stride·index, so two tensors
// share a byte if a sum of bounded multiples reaches a value: a bounded linear Diophantine equation. Strides of real tensors
// nest, so each step of the search has one or two candidates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

namespace gdn_cuda {

// Sums Σ stride·x of terms with 0 <= x <= most.
class Sums {
  public:
    static constexpr int kMostTerms = 128;  // two tensors of 64 dimensions, torch's maximum

    void add(int64_t stride, int64_t most) {
        if (stride != 0 && most != 0) terms_[count_++] = {stride, most};
    }
    // Whether a sum is in [low, high]. After kMostSteps steps it assumes yes.
    bool reach(int64_t low, int64_t high) {
        merge();
        for (int i = count_ - 1; i >= 0; --i) {
            terms_[i].rest = i + 1 < count_ ? terms_[i + 1].rest + terms_[i + 1].stride * terms_[i + 1].most : 0;
            terms_[i].divisor = i + 1 < count_ ? std::gcd(terms_[i + 1].divisor, terms_[i].stride) : terms_[i].stride;
        }
        steps_ = 0;
        return search(0, low, high);
    }

    int steps() const { return steps_; }  // taken by the search

  private:
    static constexpr int kMostSteps = 1 << 16;  // a fraction of a millisecond
    struct Term {
        int64_t stride, most;
        int64_t rest = 0;     // the largest sum of the terms after it
        int64_t divisor = 0;  // gcd of its stride and of theirs
    };
    // Sorts by descending stride, and merges terms that together reach every multiple of one stride: dimensions without gaps,
    // and the same dimension of two slices of a tensor.
    void merge() {
        std::sort(terms_.begin(), terms_.begin() + count_, [](const Term& a, const Term& b) { return a.stride > b.stride; });
        int kept = count_;
        for (int i = count_ - 1; i >= 0; --i) {
            if (kept < count_) {
                Term& shorter = terms_[kept];
                const int64_t times = terms_[i].stride / shorter.stride;
                if (terms_[i].stride % shorter.stride == 0 && times <= shorter.most + 1) {
                    shorter.most += times * terms_[i].most;
                    continue;
                }
            }
            terms_[--kept] = terms_[i];
        }
        std::copy(terms_.begin() + kept, terms_.begin() + count_, terms_.begin());
        count_ -= kept;
    }
    static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

    bool search(int i, int64_t low, int64_t high) {
        if (i == count_) return low <= 0 && high >= 0;
        const Term& term = terms_[i];
        if (floor_div(high, term.divisor) * term.divisor < low) return false;
        const int64_t first = std::max<int64_t>(0, -floor_div(term.rest - low, term.stride));
        const int64_t last = std::min(term.most, floor_div(high, term.stride));
        for (int64_t x = first; x <= last; ++x) {
            if (++steps_ > kMostSteps) return true;
            if (search(i + 1, low - x * term.stride, high - x * term.stride)) return true;
        }
        return false;
    }

    std::array<Term, kMostTerms> terms_;
    int count_ = 0, steps_ = 0;
};

// Whether two elements of a tensor have the same address.
inline bool overlaps_itself(const int64_t* sizes, const int64_t* strides, int rank) {
    int64_t reach = 0;
    bool nested = true;  // each stride exceeds the extent of the dimensions after it
    for (int d = rank - 1; d >= 0; --d) {
        if (sizes[d] == 0) return false;
        if (sizes[d] == 1) continue;
        nested = nested && strides[d] > reach;
        reach += (sizes[d] - 1) * strides[d];
    }
    if (nested) return false;
    // Two indices with the same address first differ in some dimension, by at least 1, and arbitrarily in those after it.
    for (int first = 0; first < rank; ++first) {
        if (sizes[first] == 1) continue;
        Sums differences;
        int64_t zero = -strides[first];  // difference in `first` is 1, the others minimal
        differences.add(strides[first], sizes[first] - 2);
        for (int d = first + 1; d < rank; ++d) {
            differences.add(strides[d], 2 * (sizes[d] - 1));
            zero += (sizes[d] - 1) * strides[d];
        }
        if (differences.reach(zero, zero)) return true;
    }
    return false;
}

// The memory of a tensor, in bytes.
struct Strided {
    uintptr_t begin = 0, end = 0;  // first byte to one past the last
    const int64_t *sizes = nullptr, *strides = nullptr;
    int rank = 0;
    int64_t element_bytes = 1;

    Strided() = default;
    // Torch's strides are never negative.
    Strided(const void* data, const int64_t* sizes, const int64_t* strides, int rank, int64_t element_bytes)
        : sizes(sizes), strides(strides), rank(rank), element_bytes(element_bytes) {
        int64_t last = 0;
        for (int d = 0; d < rank; ++d) {
            if (sizes[d] == 0) return;
            last += (sizes[d] - 1) * strides[d];
        }
        begin = reinterpret_cast<uintptr_t>(data);
        end = begin + static_cast<uintptr_t>((last + 1) * element_bytes);
    }
};

// Whether elements of two tensors share a byte; one tensor may fit into the other's gaps.
inline bool share_memory(const Strided& a, const Strided& b) {
    if (a.end <= b.begin || b.end <= a.begin) [[likely]]
        return false;
    Sums sums;  // over a's indices, and b's counted from the end
    int64_t distance = static_cast<int64_t>(b.begin - a.begin);
    for (int d = 0; d < a.rank; ++d) sums.add(a.strides[d] * a.element_bytes, a.sizes[d] - 1);
    for (int d = 0; d < b.rank; ++d) {
        sums.add(b.strides[d] * b.element_bytes, b.sizes[d] - 1);
        distance += b.strides[d] * b.element_bytes * (b.sizes[d] - 1);
    }
    return sums.reach(distance - a.element_bytes + 1, distance + b.element_bytes - 1);
}

}  // namespace gdn_cuda
