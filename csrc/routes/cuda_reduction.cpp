// SPDX-License-Identifier: BSD-3-Clause
// The layout of a reduction, step by step as torch decides it.
#include "csrc/routes/cuda_reduction.h"

#include <ATen/ceil_div.h>

#include <algorithm>
#include <vector>

namespace torch_npusim {

namespace {

int64_t last_power_of_two(int64_t n) {
  int64_t power = 1;
  while (power * 2 <= n) power *= 2;
  return power;
}

struct Dimension {
  int64_t size, stride;
};

// Ascending strides; neighbours that form one range become one.
std::vector<Dimension> merged(std::vector<Dimension> dims) {
  std::stable_sort(dims.begin(), dims.end(),
                   [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  std::vector<Dimension> made;
  for (const Dimension& dim : dims) {
    if (!made.empty() && made.back().size * made.back().stride == dim.stride) {
      made.back().size *= dim.size;
    } else {
      made.push_back(dim);
    }
  }
  return made;
}

int threads_per_multiprocessor(const npusim::DeviceSpec& spec) {
  const int capability = spec.capability_major * 10 + spec.capability_minor;
  if (capability == 75) return 1024;
  return capability == 86 || capability == 89 || spec.capability_major == 12 ? 1536 : 2048;
}

constexpr int64_t kFewValues = 16;
constexpr int64_t kManyValues = 256;

}  // namespace

int64_t ReductionLayout::per_thread() const { return at::ceil_div(inputs, step_input); }
int64_t ReductionLayout::grid() const { return at::ceil_div(outputs / vector, step_output); }

void ReductionLayout::set_block(int64_t dim0, int64_t dim1) {
  const int64_t most = 512 / vector;
  const int64_t wide = dim0 < most ? last_power_of_two(dim0) : most;
  const int64_t high = dim1 < most ? last_power_of_two(dim1) : most;
  width = std::min<int64_t>(wide, 32);
  height = std::min(high, most / width);
  width = std::min(wide, most / height);
}

ReductionLayout reduction_layout(const at::TensorBase& input, at::IntArrayRef dims,
                                 const npusim::DeviceSpec& spec) {
  std::vector<Dimension> over, kept;
  const int64_t rank = input.dim();
  for (int64_t d = 0; d < rank; ++d) {
    if (input.size(d) == 1) continue;
    const auto is_d = [&](int64_t dim) { return (dim + rank) % rank == d; };
    const bool goes = dims.empty() || std::any_of(dims.begin(), dims.end(), is_d);
    (goes ? over : kept).push_back({input.size(d), input.stride(d)});
  }
  over = merged(std::move(over));
  kept = merged(std::move(kept));
  ReductionLayout layout{1, 1};
  for (const Dimension& dim : over) layout.inputs *= dim.size;
  for (const Dimension& dim : kept) layout.outputs *= dim.size;
  const bool inner = kept.empty() || (!over.empty() && over[0].stride < kept[0].stride);
  int64_t dim0 = inner ? layout.inputs : layout.outputs;
  const int64_t dim1 = inner ? layout.outputs : layout.inputs;
  const int64_t fastest = inner ? (over.empty() ? 1 : over[0].stride) : kept[0].stride;
  if (fastest == 1 && inner && dim0 > 128 && kept.size() + over.size() == 1) {
    dim0 /= 4;
  } else if (fastest == 1 && !inner) {
    const auto fits = [&](int64_t by) {
      const auto even = [&](const Dimension& dim) { return dim.stride % by == 0; };
      return kept[0].size % by == 0 && std::all_of(kept.begin() + 1, kept.end(), even) &&
             std::all_of(over.begin(), over.end(), even);
    };
    layout.vector = fits(4) ? 4 : fits(2) ? 2 : 1;
    dim0 /= layout.vector;
  }
  layout.set_block(dim0, dim1);
  layout.across_width = inner;
  (inner ? layout.step_input : layout.step_output) *= layout.width;
  layout.across_height = layout.per_thread() >= std::min<int64_t>(layout.height * 16, kManyValues);
  (layout.across_height ? layout.step_input : layout.step_output) *= layout.height;
  const int64_t threads = layout.width * layout.height;
  const int64_t room = spec.multiprocessor_count * (threads_per_multiprocessor(spec) / threads);
  if (layout.across_height && layout.per_thread() >= kManyValues && layout.grid() <= room) {
    const int64_t few =
        std::min(at::ceil_div(room, layout.grid()), at::ceil_div(layout.per_thread(), kFewValues));
    layout.blocks = std::max(few, at::ceil_div(layout.per_thread(), kManyValues));
  }
  return layout;
}

}  // namespace torch_npusim
