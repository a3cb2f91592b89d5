// SPDX-License-Identifier: BSD-3-Clause
// launch(): how every operator runs its kernel: as one command on the current stream of a device,
// charged with a modelled time. Copies are commands of their own (csrc/aten/copy.cpp). Nested
// launches are part of the outer command. The checks of operands come before.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <exception>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>

#include "backend/backend.h"
#include "csrc/errors.h"
#include "csrc/launch/account.h"
#include "csrc/launch/alignment.h"
#include "csrc/runtime/host_sync.h"
#include "csrc/runtime/scratch_allocator.h"

namespace torch_npusim {

// Whether an operator takes 0-dim tensors of the host beside device tensors, as CUDA's pointwise
// operators do.
enum class HostScalars : std::uint8_t { refused, accepted };

// common_device() returns the device index shared by all defined operands. Raises "Expected all
// tensors to be on the same device ..." otherwise, naming `op`.
c10::DeviceIndex common_device(const char* op, c10::ArrayRef<const at::TensorBase*> operands,
                               HostScalars host_scalars);

// qualified_name<Op>() is "aten::sum.dim_IntList": the schema's name, by which commands go too.
template <class Op>
std::string qualified_name() {
  std::string name = Op::name;
  if (Op::overload_name[0] != '\0') name += std::string(".") + Op::overload_name;
  return name;
}
template <class Op>
inline const std::string kQualifiedName = qualified_name<Op>();

// HostWait: the host waits for a stream, because `what` needs values. The sync debug mode hears of
// it first; the wait is at the end of the scope, and none if that ends by an exception.
class HostWait {
 public:
  HostWait(const char* what, npusim::Stream& stream) : stream_(stream) { note_host_sync(what); }
  ~HostWait() noexcept(false) {
    if (std::uncaught_exceptions() == exceptions_) stream_.synchronize();
  }
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;

 private:
  npusim::Stream& stream_;
  int exceptions_ = std::uncaught_exceptions();
};

// launch() runs body() as one command on the current stream of `device` and returns its result.
template <class Body>
decltype(auto) launch(const npusim::CommandInfo& info, c10::DeviceIndex device, Body&& body) {
  return translated([&]() -> decltype(auto) {
    return npusim::run_now(npusim::current_stream(device), info, std::forward<Body>(body));
  });
}

// The same on the device of `operands`, which are checked. What the body returns is charged beside
// them; a body that returns nothing writes the first `written` of them.
template <class Body>
decltype(auto) launch(const char* op, std::initializer_list<const at::TensorBase*> operands,
                      Body&& body, double flops_per_element = 1.0, std::size_t written = 1) {
  const c10::ArrayRef<const at::TensorBase*> all(operands.begin(), operands.size());
  const c10::DeviceIndex device = common_device(op, all, HostScalars::refused);
  const Account account(elementwise_cost(all, flops_per_element));
  const npusim::CommandInfo info{op, npusim::CommandKind::kernel, account.cost()};
  if constexpr (std::is_void_v<decltype(body(device))>) {
    launch(info, device, [&] {
      body(device);
      if (C10_LIKELY(!npusim::command_failed())) return;
      for (std::size_t i = 0; i < written; ++i) spoil(*all[i]);  // (rule F3)
    });
  } else {
    return launch(info, device, [&] {
      auto result = body(device);
      account.settle(result);
      return result;
    });
  }
}

// launch_and_wait() is launch() of an operator that makes the host wait for its values.
template <class Body>
decltype(auto) launch_and_wait(const npusim::CommandInfo& info, c10::DeviceIndex device,
                               Body&& body) {
  return translated([&]() -> decltype(auto) {
    npusim::Stream& stream = npusim::current_stream(device);
    const HostWait wait(info.name, stream);
    return npusim::run_now(stream, info, std::forward<Body>(body));
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

// KernelScope: what holds while CPU kernels stand in for a device's. They meet neither autograd nor
// autocast again, which have had their turn, and what they allocate is device memory, so that
// results are born there.
class KernelScope {
 public:
  explicit KernelScope(c10::DeviceIndex device) noexcept : scratch_(device) {}

 private:
  NoWrappers no_wrappers_;
  ScratchScope scratch_;
};

}  // namespace torch_npusim
