// SPDX-License-Identifier: BSD-3-Clause
// RowMajorWalk: the elements of several tensors of one shape, in the order in which people count
// them. Dimensions that follow each other in all tensors are merged, so dense tensors cost nothing
// extra.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <array>

namespace torch_npusim {

// RowMajorWalk visits elements of N tensors of one shape in row-major order.
template <std::size_t N>
class RowMajorWalk {
 public:
  using Offsets = std::array<std::int64_t, N>;  // of one element in each tensor, in elements

  RowMajorWalk(at::IntArrayRef sizes, const std::array<at::IntArrayRef, N>& strides) {
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == 1) continue;
      Dimension next{sizes[d], {}};
      for (std::size_t n = 0; n < N; ++n) next.strides[n] = strides[n][d];
      if (!dimensions_.empty() && continues(dimensions_.back(), next)) {
        next.size *= dimensions_.back().size;
        dimensions_.back() = next;
      } else {
        dimensions_.push_back(next);
      }
    }
  }

  // run() calls visit(k, offsets) for k in [0, count), for the elements from number `first` on.
  template <class Visit>
  void run(std::int64_t first, std::int64_t count, Visit&& visit) const {
    c10::SmallVector<std::int64_t, 6> index;
    for (std::size_t d = 0; d < dimensions_.size(); ++d) index.push_back(0);
    Offsets offsets{};
    for (std::size_t d = dimensions_.size(); d-- > 0; first /= dimensions_[d].size) {
      index[d] = first % dimensions_[d].size;
      for (std::size_t n = 0; n < N; ++n) offsets[n] += index[d] * dimensions_[d].strides[n];
    }
    for (std::int64_t k = 0; k < count; ++k) {
      visit(k, static_cast<const Offsets&>(offsets));
      for (std::size_t d = dimensions_.size(); d-- > 0;) {
        const Dimension& along = dimensions_[d];
        for (std::size_t n = 0; n < N; ++n) offsets[n] += along.strides[n];
        if (C10_LIKELY(++index[d] < along.size)) break;
        for (std::size_t n = 0; n < N; ++n) offsets[n] -= along.size * along.strides[n];
        index[d] = 0;
      }
    }
  }

 private:
  struct Dimension {
    std::int64_t size;
    Offsets strides;
  };

  static bool continues(const Dimension& outer, const Dimension& inner) {
    for (std::size_t n = 0; n < N; ++n) {
      if (outer.strides[n] != inner.size * inner.strides[n]) return false;
    }
    return true;
  }

  c10::SmallVector<Dimension, 6> dimensions_;
};

}  // namespace torch_npusim
