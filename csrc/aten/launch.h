// SPDX-License-Identifier: BSD-3-Clause
// launch(): the only way to run anything on the device. It checks the operands' devices and
// alignment, picks the stream, charges the modelled time, and reports faults. Nested launches are
// part of the outer command.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <initializer_list>
#include <optional>

#include "backend/backend.h"
#include "csrc/aten/alignment.h"
#include "csrc/errors.h"

namespace torch_npusim {

// Whether an operator takes 0-dim tensors of the host beside device tensors, as CUDA's pointwise
// operators do.
enum class HostScalars : std::uint8_t { refused, accepted };

// common_device() returns the device index shared by all defined operands. Raises "Expected all
// tensors to be on the same device ..." otherwise, naming `op`.
c10::DeviceIndex common_device(const char* op, c10::ArrayRef<const at::TensorBase*> operands,
                               HostScalars host_scalars);

// elementwise_cost(): one operation per element, every operand read or written once.
npusim::Cost elementwise_cost(c10::ArrayRef<const at::TensorBase*> operands,
                              double flops_per_element = 1.0);

// launch() runs body(device_index) as one command on the current stream of the operands' device
// and returns its result.
template <class Body>
decltype(auto) launch(const char* op, std::initializer_list<const at::TensorBase*> operands,
                      HostScalars host_scalars, Body&& body, double flops_per_element = 1.0) {
  const c10::ArrayRef<const at::TensorBase*> all(operands.begin(), operands.size());
  const c10::DeviceIndex device = common_device(op, all, host_scalars);
  const npusim::CommandInfo info{op, npusim::CommandKind::kernel,
                                 elementwise_cost(all, flops_per_element)};
  return translated([&]() -> decltype(auto) {
    return npusim::run_now(npusim::current_stream(device), info,
                           [&]() -> decltype(auto) { return body(device); });
  });
}

// wrapper_keys() are the dispatch keys that a kernel's own calls must skip: autograd and autocast
// have had their turn before the kernel was reached.
inline c10::DispatchKeySet wrapper_keys() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
}

// NoWrappers: for its length the calls of this thread skip wrapper_keys(). Mostly core skips them
// already when a kernel is reached, which one look tells.
class NoWrappers {
 public:
  NoWrappers() {
    const c10::DispatchKeySet skipped = c10::impl::tls_local_dispatch_key_set().excluded_;
    if (C10_UNLIKELY(!skipped.has_all(wrapper_keys()))) guard_.emplace(wrapper_keys());
  }

 private:
  std::optional<c10::impl::ExcludeDispatchKeyGuard> guard_;
};

// synchronize_host() waits for the current stream of `device`, after reporting to the sync debug
// mode; `what` names the operation that needs the value on the host.
void synchronize_host(c10::DeviceIndex device, const char* what);

}  // namespace torch_npusim
