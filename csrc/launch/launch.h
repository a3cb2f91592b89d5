// SPDX-License-Identifier: BSD-3-Clause
// launch(): every operator runs its kernel through it, as one command on the current stream of a
// device, charged with a modelled time. Nested launches are part of the outer command. Copies are
// commands of their own (csrc/aten/copy.cpp). Operands are checked before: a refused call costs
// nothing. All errors are torch's (csrc/errors.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "backend/backend.h"
#include "csrc/cost/account.h"
#include "csrc/errors.h"
#include "csrc/operands/spoil.h"
#include "csrc/runtime/host_sync.h"
#include "csrc/runtime/kernel_scope.h"

namespace torch_npusim {

// Whether an operator takes 0-dim tensors of the host beside device tensors, as CUDA's pointwise
// operators do.
enum class HostScalars : std::uint8_t { refused, accepted };

// common_device() returns the device index shared by all defined operands. Raises "Expected all
// tensors to be on the same device ..." otherwise, naming `op`.
c10::DeviceIndex common_device(const char* op, c10::ArrayRef<const at::TensorBase*> operands,
                               HostScalars host_scalars);

// qualified_name<Op>() is "aten::sum.dim_IntList": the schema's name, also the command's.
std::string qualified_name(const char* name, const char* overload);
template <class Op>
std::string qualified_name() {
  return qualified_name(Op::name, Op::overload_name);
}
template <class Op>
inline const std::string kQualifiedName = qualified_name<Op>();

// HostWait: the host waits for a stream at the end of the scope, because `what` needs values; not
// if the scope ends by an exception. The constructor tells the sync debug mode, which may throw.
class HostWait {
 public:
  HostWait(const char* what, npusim::Stream& stream) : stream_(stream) { before_hidden_wait(what); }
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

// The same on the device of `operands`, which are checked and charged. The result of body(device)
// is charged too; a body without a result writes the first `written` operands, which become garbage
// if a fault hits the command, and does not run in a dry run.
template <class Body>
decltype(auto) launch(const char* op, std::initializer_list<const at::TensorBase*> operands,
                      Body&& body, double flops_per_element = 1.0, std::size_t written = 1) {
  const c10::ArrayRef<const at::TensorBase*> all(operands.begin(), operands.size());
  const c10::DeviceIndex device = common_device(op, all, HostScalars::refused);
  const Account account(elementwise_cost(all, flops_per_element));
  const npusim::CommandInfo info{op, npusim::CommandKind::kernel, account.cost()};
  if constexpr (std::is_void_v<decltype(body(device))>) {
    launch(info, device, [&] {
      if (C10_UNLIKELY(npusim::dry())) return;
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

}  // namespace torch_npusim
