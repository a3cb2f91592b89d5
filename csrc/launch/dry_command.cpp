// SPDX-License-Identifier: BSD-3-Clause
// Commands without bodies, and tensors without memory.
#include "csrc/launch/dry_command.h"

#include <ATen/EmptyTensor.h>

#include <string_view>
#include <unordered_map>

#include "csrc/launch/boxed_operands.h"

namespace torch_npusim {

namespace {

std::unordered_map<std::string_view, OwnCommand>& own_commands() {
  static auto* const commands = new std::unordered_map<std::string_view, OwnCommand>;
  return *commands;
}

}  // namespace

void add_own_command(const char* op, OwnCommand command) { own_commands()[op] = command; }

at::Tensor without_memory(const at::Tensor& like, c10::Device device) {
  const c10::TensorImpl& impl = *like.unsafeGetTensorImpl();
  auto nothing = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(0), c10::DataPtr(nullptr, device),
      /*allocator=*/nullptr, /*resizable=*/false);
  const c10::DispatchKey key =
      device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(nothing)), c10::DispatchKeySet(key), impl.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(impl.sizes(), impl.strides());
  return made;
}

void launch_dry(const c10::OperatorHandle& op, torch::jit::Stack stack,
                const std::vector<at::Tensor>& results, c10::DeviceIndex device) {
  const OpTraits& traits = op_traits(op);
  const auto own = own_commands().find(op.schema().name());
  if (own != own_commands().end()) {
    const npusim::CommandInfo info = own->second(stack);
    const Account account(info.cost);
    const auto body = [&] { account.settle(results); };
    const bool waits = info.kind == npusim::CommandKind::copy_h2d_pageable ||
                       info.kind == npusim::CommandKind::copy_d2h_pageable;
    return waits ? launch_and_wait(info, device, body) : launch(info, device, body);
  }
  const BoxedOperands boxed(stack, traits);
  const Account account = boxed.operands.account(traits);
  const npusim::CommandInfo info{traits.name.c_str(), npusim::CommandKind::kernel, account.cost()};
  const auto body = [&] { account.settle(results); };
  boxed.operands.waits(traits) ? launch_and_wait(info, device, body) : launch(info, device, body);
}

}  // namespace torch_npusim
