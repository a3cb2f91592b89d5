// SPDX-License-Identifier: BSD-3-Clause
// Rows of the tables of CUDA's temporaries: internal to csrc/routes/cuda_temporaries*.cpp.
#pragma once

#include "csrc/routes/cuda_temporaries.h"
#include "csrc/runtime/device_allocator.h"

namespace torch_npusim {

struct TemporariesCall {
  TensorPointers operands;
  const CallArguments& arguments;
  c10::DeviceIndex device;
  double numel(std::size_t operand) const {
    return static_cast<double>(operands[operand]->numel());
  }
  double bytes(std::size_t operand) const {
    return numel(operand) * static_cast<double>(operands[operand]->itemsize());
  }
  c10::DataPtr block(double bytes) const {
    return allocate_on_device(static_cast<std::size_t>(bytes), device);
  }
};

struct TemporariesOf {
  const char* op;
  void (*allocate)(const TemporariesCall& call);
  const char* what;
  const char* source;
  const char* condition;
};

// rows_before_results() are the rows of csrc/routes/cuda_temporaries_before.cpp.
c10::ArrayRef<TemporariesOf> rows_before_results();

// Gradients of embeddings of more indices sort them.
inline constexpr double kFewIndices = 3072;

// sums_bags() is whether the gradient of bags sorts its indices: the number behind that of rows is
// the mode, and maxima do not; nor does a sparse one, the second flag where there are two.
inline bool sums_bags(const CallArguments& arguments) {
  constexpr int64_t kMax = 2;
  const bool sparse = arguments.flags.size() > 1 && arguments.flags[1];
  return arguments.second.value_or(0) != kMax && !sparse;
}

}  // namespace torch_npusim
