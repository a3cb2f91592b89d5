// SPDX-License-Identifier: BSD-3-Clause
// The boxed fallback: operands become host views, the CPU kernel runs, results become device
// tensors. Memory that the kernel allocates for its results comes from the device pool, so nothing
// is copied. Host-synchronous under every executor; modelled as one asynchronous command.
#include "csrc/aten/fallback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "csrc/aten/fallback_stats.h"
#include "csrc/aten/host_view.h"
#include "csrc/aten/launch.h"
#include "csrc/aten/sync_debug.h"
#include "csrc/runtime/generator.h"
#include "csrc/runtime/pool_allocator.h"

namespace torch_npusim {

namespace {

// What the schema of one overload says; made on its first call and kept.
struct OpRecord {
  std::string name;
  c10::SmallVector<bool, 8> written;  // per argument
  HostScalars host_scalars = HostScalars::refused;
  bool any_host_operand = false;  // takes host tensors of any shape beside device tensors
  bool dynamic_shape = false;     // the result's shape depends on values: the host must wait
  bool masks_only = false;        // ... but only when an index is a mask
  bool has_host_kernel = false;   // as of the first call; libraries may be loaded later
  std::size_t return_count = 0;
  std::atomic<std::int64_t> calls{0};
};

// Operators beside the pointwise ones whose CUDA kernels accept a 0-dim host tensor.
constexpr std::array<std::string_view, 12> kTakesHostScalar = {
    "aten::fill",          "aten::fill_",       "aten::masked_fill",      "aten::masked_fill_",
    "aten::index_fill",    "aten::index_fill_", "aten::_index_put_impl_", "aten::_fused_adam_",
    "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_",  "aten::where"};

// Pointwise operators whose CUDA kernels do not: their iterators allow no host scalars.
constexpr std::array<std::string_view, 2> kRefusesHostScalar = {"aten::clamp", "aten::clamp_"};

// Operators that document a host tensor among their arguments.
constexpr std::array<std::string_view, 3> kTakesHostTensor = {
    "aten::_pack_padded_sequence", "aten::_ctc_loss", "aten::_ctc_loss_backward"};

template <std::size_t N>
bool listed(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::unique_ptr<OpRecord> make_record(const c10::OperatorHandle& op) {
  auto record = std::make_unique<OpRecord>();
  const c10::FunctionSchema& schema = op.schema();
  record->name = schema.name();
  for (const c10::Argument& argument : schema.arguments()) {
    record->written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  }
  const bool pointwise = op.hasTag(at::Tag::pointwise) && !listed(kRefusesHostScalar, record->name);
  if (pointwise || listed(kTakesHostScalar, record->name)) {
    record->host_scalars = HostScalars::accepted;
  }
  record->any_host_operand = listed(kTakesHostTensor, record->name);
  record->dynamic_shape =
      op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
  record->masks_only = record->name == "aten::index";
  record->has_host_kernel = op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  record->return_count = schema.returns().size();
  if (!schema.overload_name().empty()) record->name += "." + schema.overload_name();
  return record;
}

// Records by schema. A removed operator's record is retired: its counter stays, but a new schema at
// the same address must not find it.
class OpTable {
 public:
  OpRecord& find(const c10::OperatorHandle& op) {
    const void* key = &op.schema();
    thread_local Recent recent;
    const std::uint64_t now = removals_.load(std::memory_order_acquire);
    if (C10_UNLIKELY(recent.removals != now)) recent = Recent{now, {}};
    auto& slot = recent.slots[(reinterpret_cast<std::uintptr_t>(key) >> 4) % recent.slots.size()];
    if (C10_LIKELY(slot.first == key)) return *slot.second;
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<OpRecord>& record = records_[key];
    if (record == nullptr) record = make_record(op);
    slot = {key, record.get()};
    return *record;
  }

  void retire(const void* schema) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = records_.find(schema);
    if (found == records_.end()) return;
    retired_.push_back(std::move(found->second));
    records_.erase(found);
    removals_.fetch_add(1, std::memory_order_release);
  }

  std::vector<FallbackCount> counts() {
    std::map<std::string, std::int64_t> by_name;
    const std::lock_guard<std::mutex> lock(mutex_);
    for_each([&](const OpRecord& record) {
      const std::int64_t calls = record.calls.load(std::memory_order_relaxed);
      if (calls > 0) by_name[record.name] += calls;
    });
    std::vector<FallbackCount> all;
    for (const auto& [name, calls] : by_name) all.push_back({name, calls});
    return all;
  }

  void reset() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for_each([](OpRecord& record) { record.calls = 0; });
  }

 private:
  struct Recent {  // the records that a thread used last, as of so many removals
    std::uint64_t removals = 0;
    std::array<std::pair<const void*, OpRecord*>, 256> slots{};
  };

  template <class Visit>
  void for_each(const Visit& visit) {
    for (const auto& [key, record] : records_) visit(*record);
    for (const auto& record : retired_) visit(*record);
  }

  std::mutex mutex_;  // guards the containers; the records themselves are never destroyed
  std::unordered_map<const void*, std::unique_ptr<OpRecord>> records_;
  std::vector<std::unique_ptr<OpRecord>> retired_;
  std::atomic<std::uint64_t> removals_{0};
};

class RemovalListener final : public c10::OpRegistrationListener {
 public:
  explicit RemovalListener(OpTable& table) : table_(table) {}
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    table_.retire(&op.schema());
  }

 private:
  OpTable& table_;
};

OpTable& op_table() {
  // Never destroyed, nor is its listener: kernels may run during shutdown.
  static auto* table = [] {
    auto* made = new OpTable;
    static auto* listening =
        new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(
            std::make_unique<RemovalListener>(*made)));
    static_cast<void>(listening);
    return made;
  }();
  return *table;
}

bool is_optional_tensor_list(const c10::IValue& value) { return value.isOptionalTensorList(); }

// The tensors among the arguments, kept alive and in order.
struct Operands {
  c10::SmallVector<at::Tensor, 8> tensors;
  c10::SmallVector<bool, 8> optional_index;  // member of an optional tensor list
  c10::SmallVector<bool, 8> written;
  std::optional<c10::Device> device_argument;

  void collect(const c10::IValue& value, bool is_written) {
    if (value.isTensor()) {
      add(value.toTensor(), false, is_written);
    } else if (value.isTensorList()) {
      for (const c10::IValue& item : value.toListRef()) add(item.toTensor(), false, is_written);
    } else if (is_optional_tensor_list(value)) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) add(item.toTensor(), true, is_written);
      }
    } else if (value.isDevice()) {
      device_argument = value.toDevice();
    }
  }

 private:
  void add(const at::Tensor& tensor, bool index, bool is_written) {
    if (!tensor.defined()) return;
    tensors.push_back(tensor);
    optional_index.push_back(index);
    written.push_back(is_written);
  }
};

c10::DeviceIndex device_of_call(const OpRecord& record, const Operands& operands) {
  c10::SmallVector<const at::TensorBase*, 8> checked;
  bool on_device = false;
  HostScalars host_scalars = record.host_scalars;
  for (std::size_t i = 0; i < operands.tensors.size(); ++i) {
    const at::Tensor& tensor = operands.tensors[i];
    on_device |= tensor.is_privateuseone();
    if (tensor.is_cpu() && operands.written[i]) host_scalars = HostScalars::refused;
    // CUDA moves host indices to the device, and some operators want a host tensor.
    const bool host_allowed = operands.optional_index[i] || record.any_host_operand;
    if (!tensor.is_privateuseone() && host_allowed) continue;
    checked.push_back(&tensor);
  }
  if (!on_device) {
    const c10::Device device = operands.device_argument.value_or(c10::Device(c10::kPrivateUse1));
    return device.has_index() ? device.index()
                              : static_cast<c10::DeviceIndex>(npusim::current_device());
  }
  return common_device(record.name.c_str(), checked, host_scalars);
}

bool waits_for_values(const OpRecord& record, const Operands& operands) {
  if (!record.dynamic_shape) return false;
  if (!record.masks_only) return true;
  for (std::size_t i = 0; i < operands.tensors.size(); ++i) {
    if (!operands.optional_index[i]) continue;
    const at::ScalarType dtype = operands.tensors[i].scalar_type();
    if (dtype == at::kBool || dtype == at::kByte) return true;
  }
  return false;
}

c10::IValue view_argument(HostCall& call, const c10::IValue& value, bool written,
                          c10::DeviceIndex device) {
  if (value.isTensor()) return call.view(value.toTensor(), written);
  if (value.isTensorList()) {
    c10::List<at::Tensor> views;
    for (const c10::IValue& item : value.toListRef()) {
      views.push_back(call.view(item.toTensor(), written));
    }
    return views;
  }
  if (is_optional_tensor_list(value)) {
    c10::List<std::optional<at::Tensor>> views;
    for (const c10::IValue& item : value.toListRef()) {
      views.push_back(item.isTensor()
                          ? std::optional<at::Tensor>(call.view(item.toTensor(), written))
                          : std::nullopt);
    }
    return views;
  }
  if (value.isDevice() && value.toDevice().is_privateuseone()) return c10::Device(c10::kCPU);
  if (value.isGenerator()) return host_generator_for(value.toGenerator(), device);
  return value;
}

c10::IValue device_result(HostCall& call, const c10::IValue& value) {
  if (value.isTensor()) return call.result(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> results;
    for (const c10::IValue& item : value.toListRef()) {
      results.push_back(call.result(item.toTensor()));
    }
    return results;
  }
  return value;
}

bool all_plain_dense(const Operands& operands) {
  for (const at::Tensor& tensor : operands.tensors) {
    if (!tensor.key_set().has_any(c10::DispatchKeySet(c10::DispatchKey::Dense))) return false;
  }
  return !operands.tensors.empty();
}

// Operators of other vendors' libraries, among others. torch's own message would blame the CPU.
void check_host_kernel(const c10::OperatorHandle& op, const OpRecord& record) {
  if (C10_LIKELY(record.has_host_kernel)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU),
                              record.name,
                              " is not implemented for npusim: neither this backend "
                              "nor the CPU, whose kernels it runs, has a kernel for it.");
}

void run_on_views(const c10::OperatorHandle& op, torch::jit::Stack* stack, OpRecord& record,
                  c10::DeviceIndex device, bool dense) {
  if (dense) check_host_kernel(op, record);
  // The CPU kernel must not meet autograd or autocast again: both have had their turn.
  const c10::impl::ExcludeDispatchKeyGuard no_wrappers(wrapper_keys());
  const PoolScope pool(device);
  HostCall call(record.name.c_str(), device);
  const std::size_t argument_count = record.written.size();
  const std::size_t first = stack->size() - argument_count;
  for (std::size_t i = 0; i < argument_count; ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (value.isTensor() || value.isList() || value.isDevice() || value.isGenerator()) {
      value = view_argument(call, value, record.written[i], device);
    } else if (value.isNone() && op.schema().arguments()[i].name() == "generator") {
      value = host_generator_for(std::nullopt, device);
    }
  }
  if (dense) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  } else {
    call.mirror_requires_grad();
    op.callBoxed(stack);
  }
  call.finish();
  for (std::size_t i = stack->size() - record.return_count; i < stack->size(); ++i) {
    (*stack)[i] = device_result(call, (*stack)[i]);
  }
}

}  // namespace

void run_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  OpRecord& record = op_table().find(op);
  const char* name = record.name.c_str();
  Operands operands;
  const auto arguments = torch::jit::last(*stack, record.written.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    operands.collect(arguments[i], record.written[i]);
  }
  const c10::DeviceIndex device = device_of_call(record, operands);
  const bool waits = waits_for_values(record, operands);
  if (C10_UNLIKELY(waits)) note_host_sync(name);
  c10::SmallVector<const at::TensorBase*, 8> costed;
  for (const at::Tensor& tensor : operands.tensors) costed.push_back(&tensor);
  const npusim::CommandInfo info{name, npusim::CommandKind::kernel, elementwise_cost(costed, 1.0)};
  const bool dense = all_plain_dense(operands);
  translated([&] {
    npusim::Stream& stream = npusim::current_stream(device);
    npusim::run_now(stream, info, [&] { run_on_views(op, stack, record, device, dense); });
    if (C10_UNLIKELY(waits)) stream.synchronize();
  });
}

void host_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  OpRecord& record = op_table().find(op);
  note_fallback(record.name.c_str(), record.calls);
  run_boxed(op, stack);
}

std::vector<FallbackCount> fallback_counts() { return op_table().counts(); }
void reset_fallback_counts() { op_table().reset(); }

// Every operator without a kernel of its own, dense or sparse or quantized.
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
}

// CPU has its own kernel for these although a composite exists, with other bits;
// tests/ops/test_fallback.py recomputes the list from the dispatcher.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name :
       {"_stack", "_stack.out", "addr", "addr.out", "all.dims", "all.dims_out", "any.dims",
        "any.dims_out", "linalg__powsum", "mish_backward", "native_channel_shuffle",
        "native_group_norm", "native_layer_norm", "silu_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
  }
}

}  // namespace torch_npusim
