// SPDX-License-Identifier: BSD-3-Clause
// OpTraits: the facts of an operator that follow from its schema, tags and name; CallOperands: the
// operands of one call, and the checks that the traits ask for. Shared by the boxed kernel
// (csrc/routes/fallback.cpp), the typed ones (cpu_kernel.h) and dry runs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <atomic>

#include "csrc/cost/account.h"
#include "csrc/launch/launch.h"

namespace torch_npusim {

// What an operator does with the elements that its index tensors choose.
enum class Indices : std::uint8_t { none, read, written };

// The traits of one overload: made on its first call, never destroyed, shared by all threads. Only
// `calls` changes afterwards.
struct OpTraits {
  std::string name;                   // "aten::sum.dim_IntList"
  c10::SmallVector<bool, 8> written;  // per argument
  bool writes = false;                // to any of them
  HostScalars host_scalars = HostScalars::refused;
  bool any_host_operand = false;    // takes host tensors of any shape beside device tensors
  bool reads_values = false;        // the result's shape, say: the host must wait
  Indices indices = Indices::none;  // ... or it waits for some index tensors only
  bool reads_behind = false;        // its CPU kernel, behind an operand that is expanded
  bool runs_python = false;         // its CPU kernel is Python code
  bool dynamic_shape = false;       // the result's shape depends on values
  bool only_in_place = false;       // its results are arguments that it writes, or it has none
  bool has_cpu_kernel = false;      // as of the first call; libraries may be loaded later
  std::size_t return_count = 0;
  std::optional<c10::OperatorHandle> op;
  CostTraits cost;
  std::optional<std::size_t> generator;    // the position of the argument of that name
  std::optional<std::size_t> output_size;  // likewise; given, it answers what the host waits for
  std::atomic<std::int64_t> calls{0};      // of the boxed fallback
};

// op_traits() finds the traits of an operator; for_each_op() visits those of all operators called
// so far, in no order, removed registrations included. Thread-safe. `visit` runs under the table's
// lock and must call no operator.
OpTraits& op_traits(const c10::OperatorHandle& op);
void for_each_op(c10::function_ref<void(OpTraits&)> visit);

// CallOperands: the tensors among one call's arguments, in order. It refers to them: the caller
// keeps them alive.
class CallOperands {
 public:
  using Role = OperandRole;

  void add(const at::TensorBase& tensor, Role role) {
    if (!tensor.defined()) return;
    tensors_.push_back(&tensor);
    roles_.push_back(role);
  }
  void add_number(int64_t number) { numbers_.push_back(number); }
  void add_flag(bool flag) {
    if (!flag_.has_value()) flag_ = flag;
    add_mask(flag);
  }
  void add_mask(bool flag) { flags_ = 2 * flags_ + static_cast<std::uint64_t>(flag); }
  void add_scalar(const at::Scalar& number) {
    if (!zero_.has_value()) zero_ = !number.isSymbolic() && number.equal(0);
  }
  void set_device(c10::Device device) { device_argument_ = device; }
  void set_size_is_known() { size_is_known_ = true; }

  // device() returns the index of the device that all operands share, or that of the device
  // argument, or the current one. Raises "Expected all tensors to be on the same device ...".
  c10::DeviceIndex device(const OpTraits& traits) const;

  // waits() is whether the host must wait for values before it knows the result's shape.
  bool waits(const OpTraits& traits) const;

  // all_dense() is false if an operand is sparse or quantized, or if there is none.
  bool all_dense() const;

  TensorPointers tensors() const { return tensors_; }

  // flags() tells calls apart whose boolean arguments differ.
  std::uint64_t flags() const { return flags_; }

  // account() is the cost of the call before its results are known; it points into this object.
  Account account(const OpTraits& traits) const {
    return Account(traits.cost, tensors_, roles_, numbers_, flag_.value_or(false),
                   zero_.value_or(false));
  }

 private:
  bool on_one_device() const;  // and within their storages

  c10::SmallVector<const at::TensorBase*, 8> tensors_;
  c10::SmallVector<Role, 8> roles_;
  c10::SmallVector<int64_t, 8> numbers_;  // the integer arguments, lists spread out
  std::optional<bool> flag_;              // the first boolean argument
  std::uint64_t flags_ = 0;               // all boolean arguments, a bit each
  std::optional<bool> zero_;              // whether the first Scalar argument is 0
  std::optional<c10::Device> device_argument_;
  bool size_is_known_ = false;
};

}  // namespace torch_npusim
