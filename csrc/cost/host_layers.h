// SPDX-License-Identifier: BSD-3-Clause
// The host's time beside the launch of a command, by the kind of its operator. A file of a host
// (torch_npusim/specs/hosts) has the numbers.
#pragma once

#include <cstdint>

namespace torch_npusim {

// In nanoseconds; 0: nothing.
struct HostLayers {
  std::int64_t backward_ns;   // a command of a backward pass that is no cast
  std::int64_t library_ns;    // a product or a convolution: its library looks for an algorithm
  std::int64_t reduction_ns;  // a reduction or a lookup by index: dimensions are sorted and merged
  std::int64_t call_ns;       // a view, and memory without values
  std::int64_t kernel_ns;     // each kernel that cuDNN launches beside its first
  std::int64_t input_ns;      // a tensor that a compiled graph takes: guards, asserts, autograd
};

// set_host_layers() lets these times pass from now on; all 0: none.
void set_host_layers(const HostLayers& layers);

}  // namespace torch_npusim
