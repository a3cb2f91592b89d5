// SPDX-License-Identifier: BSD-3-Clause
// How CUDA lays a reduction out over threads and blocks (Reduce.cuh: setReduceConfig), as far as it
// decides the size of its buffer.
#pragma once

#include <ATen/core/TensorBase.h>

#include "backend/backend.h"

namespace torch_npusim {

struct ReductionLayout {
  int64_t outputs, inputs;  // inputs per output
  int64_t vector = 1;       // outputs per thread
  int64_t step_input = 1, step_output = 1;
  int64_t width = 1, height = 1;
  bool across_width = false, across_height = false;
  int64_t blocks = 1;  // that share an output

  int64_t per_thread() const;
  int64_t grid() const;
  void set_block(int64_t dim0, int64_t dim1);
};

// reduction_layout() is that of `input` over the dimensions `dims`; none: over all.
ReductionLayout reduction_layout(const at::TensorBase& input, at::IntArrayRef dims,
                                 const npusim::DeviceSpec& spec);

}  // namespace torch_npusim
