// SPDX-License-Identifier: BSD-3-Clause
// The table of functions behind the public header <torch_npusim/kernel.h>. An extension asks the
// dispatcher for it, so nothing has to be linked and no symbol of this library is exported.
#include <torch/library.h>

#include "csrc/launch/device_launcher.h"
#include "csrc/launch/launch.h"
#include "csrc/observers/observe.h"
#include "csrc/runtime/known_values.h"
#include "torch_npusim/include/torch_npusim/kernel.h"

namespace torch_npusim {

namespace {

void* kernel_address(const at::TensorBase& tensor) {
  void* data = tensor.mutable_data_ptr();
  return npusim::is_device_address(data) ? npusim::kernel_alias(data) : data;
}

void launch_kernel(const char* name, c10::ArrayRef<at::Tensor> operands, std::uint64_t written,
                   double flops, const std::function<void()>& body) {
  c10::SmallVector<const at::TensorBase*, 6> all;
  for (const at::Tensor& operand : operands) all.push_back(&operand);
  const c10::DeviceIndex device = common_device(name, all, HostScalars::refused);
  npusim::Cost cost = elementwise_cost(all);
  cost.flops = flops;
  const npusim::CommandInfo info{name, npusim::CommandKind::kernel, cost};
  if (C10_UNLIKELY(npusim::dry())) forget_values();
  translated([&] {
    npusim::submit(npusim::current_stream(device), info, [&] {
      for (std::size_t i = 0; i < operands.size(); ++i) {
        note_use(operands[i], i >= 64 || (written >> i & 1) != 0 ? Use::writes : Use::reads);
      }
      body();
    });
  });
}

constexpr KernelInterface kInterface{KernelInterface::kVersion, &kernel_address, &launch_kernel,
                                     &device_launcher};

}  // namespace

TORCH_LIBRARY_FRAGMENT(npusim, m) {
  m.def("_kernel_interface() -> int", [] { return reinterpret_cast<std::int64_t>(&kInterface); });
}

}  // namespace torch_npusim
