// SPDX-License-Identifier: BSD-3-Clause
// A callback of torch's own for every operator, which looks for pinned operands.
#include "csrc/observers/host_accesses.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "csrc/observers/observed_operand.h"

namespace torch_npusim {

namespace {

std::atomic<void (*)()> g_settle{nullptr};

struct Callback {
  std::mutex mutex;  // guards the rest
  at::CallbackHandle handle = 0;
  bool added = false;
  std::unordered_set<std::string> names;  // for as long as the process lives
};
Callback& callback() {
  static auto* made = new Callback;
  return *made;
}

const char* lasting(const char* name) {
  Callback& all = callback();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.names.emplace(name).first->c_str();
}

bool is_pinned(const c10::IValue& value) {
  if (!value.isTensor()) return false;
  const at::Tensor& tensor = value.toTensor();
  return tensor.defined() && tensor.is_cpu() && tensor.has_storage() &&
         npusim::is_pinned(tensor.storage().data());
}

bool on_device(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().is_privateuseone();
  if (!value.isTensorList()) return false;
  for (const c10::IValue& item : value.toListRef()) {
    if (on_device(item)) return true;
  }
  return false;
}

// Operators whose kernel touches bytes. Those that are composed of others are seen by their parts,
// and a copy between host and device is a command.
bool touches_bytes(const c10::FunctionSchema& schema) {
  const std::string_view name = schema.name();
  if (name == "aten::copy_") return true;
  if (name == "aten::set_" || name == "aten::resize_") return false;
  const auto op = c10::Dispatcher::singleton().findOp(schema.operator_name());
  return op.has_value() && op->hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

void note(const char* name, const c10::IValue& value, bool written) {
  const at::Tensor& tensor = value.toTensor();
  const DescribedOperand operand(*tensor.unsafeGetTensorImpl(), tensor.storage().data(),
                                 written ? Use::writes : Use::reads);
  if (operand.get() != nullptr) npusim::note_host_access(name, *operand.get());
}

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  if (!npusim::observed() || npusim::in_command_body()) return nullptr;
  const auto inputs = function.inputs();
  bool pinned = false;
  for (const c10::IValue& input : inputs) {
    if (on_device(input)) return nullptr;
    pinned |= is_pinned(input) || input.isTensorList();
  }
  const auto schema = function.operator_schema();
  if (!pinned || !schema.has_value() || !touches_bytes(*schema)) return nullptr;
  const auto& arguments = schema->arguments();
  for (const c10::Argument& argument : arguments) {  // a view reads nothing
    if (argument.alias_info() != nullptr && !argument.alias_info()->isWrite()) return nullptr;
  }
  const char* name = lasting(function.name());
  bool noted = false;
  for (std::size_t i = 0; i < inputs.size() && i < arguments.size(); ++i) {
    const bool written = arguments[i].alias_info() != nullptr;
    const auto look_at = [&](const c10::IValue& value) {
      if (!is_pinned(value)) return;
      note(name, value, written);
      noted = true;
    };
    if (inputs[i].isTensorList()) {
      for (const c10::IValue& item : inputs[i].toListRef()) look_at(item);
    } else {
      look_at(inputs[i]);
    }
  }
  if (void (*settle)() = g_settle.load(); noted && settle != nullptr) settle();
  return nullptr;
}

}  // namespace

void watch_host_accesses(void (*settle)()) {
  g_settle.store(settle);
  if (settle != nullptr) {
    if (npusim::pinned_bytes() > 0) watch_pinned_memory();
    return;
  }
  Callback& all = callback();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.added) at::removeCallback(all.handle);
  all.added = false;
}

void watch_pinned_memory() {
  if (g_settle.load() == nullptr) return;
  Callback& all = callback();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.added) return;
  all.handle = at::addGlobalCallback(at::RecordFunctionCallback(&on_operator)
                                         .needsInputs(true)
                                         .scopes({at::RecordScope::FUNCTION}));
  all.added = true;
}

}  // namespace torch_npusim
