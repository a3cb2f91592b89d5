// SPDX-License-Identifier: BSD-3-Clause
// The operators that are followed, and the bytes. A callback of RecordFunction sees every call of
// an operator: what writes makes its operand unknown before the call, and values that were computed
// on the host become those of the results after it.
#include "csrc/runtime/known_values.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "backend/backend.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/dry_answers.h"
#include "csrc/runtime/expected_counts.h"
#include "csrc/runtime/kernel_scope.h"
#include "csrc/runtime/scratch_allocator.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

struct KnownBytes {
  const void* address;  // of the device's bytes; another one means that core replaced them
  std::uint64_t epoch;
  c10::Storage host;
  std::optional<Spread> spread;
};

void KnownBytesDeleter::operator()(KnownBytes* known) const noexcept { delete known; }

namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

constexpr std::size_t kMostBytes = 1 << 20;  // of a storage: DDP compares the shapes of a model
constexpr int64_t kMostElements = 2048;      // of an operand, and of a pointwise result

std::atomic<std::uint64_t> g_epoch{0};
at::CallbackHandle g_handle = at::INVALID_CALLBACK_HANDLE;

std::mutex& mutex() {
  static auto* made = new std::mutex;  // never destroyed: storages are freed at exit
  return *made;
}

// Modes of torch are for the program's own calls.
c10::DispatchKeySet skipped_keys() {
  using c10::DispatchKey;
  return wrapper_keys() | c10::python_ks |
         c10::DispatchKeySet({DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchVmapMode,
                              DispatchKey::FuncTorchGradWrapper, DispatchKey::Functionalize,
                              DispatchKey::FuncTorchDynamicLayerFrontMode,
                              DispatchKey::FuncTorchDynamicLayerBackMode,
                              DispatchKey::PythonDispatcher, DispatchKey::PreDispatch});
}

bool is_plain_dense(const at::TensorBase& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested() &&
         !tensor.is_quantized() && !tensor.unsafeGetTensorImpl()->is_python_dispatch() &&
         tensor.has_storage();
}

// The storage of a tensor whose values may be followed: of the allocator's own block, so that no
// other storage is over its bytes.
DeviceStorage* own_storage(const at::TensorBase& tensor) {
  if (!is_plain_dense(tensor) ||
      !tensor.key_set().has_all(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1))) {
    return nullptr;
  }
  DeviceStorage* storage = as_device_storage(tensor.storage().unsafeGetStorageImpl());
  if (storage == nullptr) return nullptr;
  const bool owned = storage->data_ptr().get_deleter() == &free_block_deleter;
  return owned && !storage->has_materializer() ? storage : nullptr;
}

bool may_be_known(const at::TensorBase& tensor) {
  return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) &&
         tensor.storage().nbytes() <= kMostBytes && !tensor.is_neg() && !tensor.is_conj();
}

c10::Storage bytes_of(DeviceStorage& storage) {
  if (storage.known.load(std::memory_order_acquire) == nullptr) return {};
  const std::lock_guard<std::mutex> lock(mutex());
  const KnownBytes* known = storage.known.load();
  const bool holds = known != nullptr && known->host && known->address == storage.data() &&
                     known->epoch == g_epoch.load() && known->host.nbytes() == storage.nbytes();
  return holds ? known->host : c10::Storage();
}

std::optional<Spread> spread_of(const at::TensorBase& tensor) {
  DeviceStorage* storage = own_storage(tensor);
  if (storage == nullptr || storage->known.load(std::memory_order_acquire) == nullptr) return {};
  const std::lock_guard<std::mutex> lock(mutex());
  const KnownBytes* known = storage->known.load();
  const bool holds =
      known != nullptr && known->address == storage->data() && known->epoch == g_epoch.load();
  return holds ? known->spread : std::nullopt;
}

void install(DeviceStorage& storage, c10::Storage host,
             const std::optional<Spread>& spread = std::nullopt) {
  const std::lock_guard<std::mutex> lock(mutex());
  auto* known = host || spread.has_value()
                    ? new KnownBytes{storage.data(), g_epoch.load(), std::move(host), spread}
                    : nullptr;
  const std::unique_ptr<KnownBytes, KnownBytesDeleter> old(storage.known.exchange(known));
}

c10::Storage fresh_bytes(std::size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::device(at::kCPU).dtype(at::kByte)).storage();
}

Tensor over(const c10::Storage& bytes, const at::TensorBase& like) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(bytes), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                    like.storage_offset());
  return made;
}

// Whether a write to all of `tensor` leaves no byte of its storage as it was.
bool covers(const at::TensorBase& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         static_cast<std::size_t>(tensor.numel()) * tensor.itemsize() == tensor.storage().nbytes();
}

enum class Kind : std::uint8_t { other, computed, overwrites, arange, all_or, all_and };

struct Followed {
  Kind kind = Kind::other;
  bool in_place = false;
  SpreadRule spread = nullptr;
  std::vector<bool> written;
};

Kind kind_of(std::string_view name, std::string_view overload) {
  static const auto* const kComputed = new std::unordered_set<std::string_view>{
      "bitwise_xor", "bitwise_not", "logical_xor", "logical_not", "eq",           "ne",
      "lt",          "le",          "gt",          "ge",          "add",          "sub",
      "rsub",        "mul",         "neg",         "abs",         "floor_divide", "remainder",
      "minimum",     "maximum",     "clamp",       "clamp_min",   "clamp_max",    "max",
      "min",         "any",         "all",         "sum",         "cumsum",       "cat",
      "where",       "isin",        "masked_fill", "clone",       "nonzero",      "bincount"};
  if (name == "arange" && overload == "start_out") return Kind::arange;
  if (overload.find("out") != std::string_view::npos) return Kind::other;
  if (name == "fill_" || name == "zero_" || name == "copy_") return Kind::overwrites;
  if (name.ends_with('_')) name.remove_suffix(1);
  if (name == "bitwise_or" || name == "logical_or") return Kind::all_or;
  if (name == "bitwise_and" || name == "logical_and") return Kind::all_and;
  return kComputed->contains(name) ? Kind::computed : Kind::other;
}

Followed look_up(const at::RecordFunction& call) {
  Followed made;
  if (const auto schema = call.operator_schema()) {
    const std::string_view name = schema->name();
    static const auto* const kNoBytes = new std::unordered_set<std::string_view>{
        "aten::detach_", "aten::requires_grad_", "aten::t_",         "aten::transpose_",
        "aten::resize_", "aten::squeeze_",       "aten::unsqueeze_", "aten::as_strided_"};
    const bool knows = name.starts_with("aten::");
    const bool writes = knows && !kNoBytes->contains(name);
    // The backend of a collective says what it writes.
    const bool collective = name.starts_with("c10d::") || name.starts_with("_c10d_functional::");
    // The statistics of batch norm are written, and its schemas do not say so.
    const bool all = (!knows && !collective) || name.find("batch_norm") != std::string_view::npos;
    if (knows) made.kind = kind_of(name.substr(6), schema->overload_name());
    if (knows) made.spread = spread_rule(schema->name().substr(6) + "." + schema->overload_name());
    for (const c10::Argument& argument : schema->arguments()) {
      made.written.push_back(all ||
                             (writes && argument.alias_info() && argument.alias_info()->isWrite()));
    }
    made.in_place = made.kind != Kind::arange && !made.written.empty() && made.written[0];
  }
  return made;
}

// Operators of aten are never removed, so the address of a name stands for one.
const Followed& followed(const at::RecordFunction& call) {
  thread_local std::unordered_map<const char*, Followed> cache;
  thread_local Followed of_others;
  if (std::strncmp(call.name(), "aten::", 6) != 0) return of_others = look_up(call);
  const auto found = cache.find(call.name());
  if (found != cache.end()) return found->second;
  return cache.emplace(call.name(), look_up(call)).first->second;
}

template <class Do>
void each_tensor(const IValue& value, const Do& act) {
  if (value.isTensor()) {
    act(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const IValue& item : value.toListRef()) {
      if (item.isTensor()) act(item.toTensor());
    }
  }
}

void forget_written(const Tensor& tensor) {
  if (!is_plain_dense(tensor) || !tensor.is_privateuseone()) return;
  if (tensor.storage().nbytes() == 0) return;
  DeviceStorage* storage = own_storage(tensor);
  if (storage == nullptr) return forget_values();  // another storage may be over the same bytes
  if (storage->known.load(std::memory_order_relaxed) != nullptr) install(*storage, {});
}

struct Computed final : at::ObserverContext {
  std::vector<Tensor> results;
  c10::Storage in_place;  // the new bytes of the storage of the first result
  int absorbed = -1;      // all elements of the first result
  std::optional<Spreading> spreading;
};

// The arguments on the host; empty if an operand is not known.
Stack on_host(c10::ArrayRef<const IValue> inputs) {
  Stack host;
  bool known = true, any_device = false;
  std::vector<int64_t> sizes;
  const auto shown = [&](const Tensor& tensor) -> Tensor {
    if (!tensor.defined() || !known) return tensor;
    Tensor values = tensor;
    if (tensor.is_privateuseone()) {
      any_device = true;
      values = known_values_of(tensor);
    } else if (!is_plain_dense(tensor) || !tensor.is_cpu()) {
      values = Tensor();
    }
    known = values.defined() && values.numel() <= kMostElements;
    return values;
  };
  for (const IValue& value : inputs) {
    if (value.isTensor()) {
      const Tensor values = shown(value.toTensor());
      if (known && values.defined()) sizes = at::infer_size(sizes, values.sizes());
      host.emplace_back(values);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const IValue& item : value.toListRef()) list.push_back(shown(item.toTensor()));
      host.emplace_back(std::move(list));
    } else {
      host.push_back(value);
    }
    if (!known) return {};
  }
  const bool small = c10::multiply_integers(sizes) <= kMostElements;
  return any_device && small ? host : Stack();
}

void run_on_host(const at::RecordFunction& call, Stack& stack) {
  const auto op = c10::Dispatcher::singleton().findSchema(*call.operator_name());
  op->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

bool absorbs(Kind kind, c10::ArrayRef<const IValue> inputs) {
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor()) return false;
  const bool is_or = kind == Kind::all_or;
  for (const std::size_t i : {0, 1}) {
    if (is_or && inputs[i].toTensor().scalar_type() != at::kBool) return false;
  }
  for (const std::size_t i : {0, 1}) {
    const Tensor& tensor = inputs[i].toTensor();
    if (!tensor.is_privateuseone()) continue;
    const Tensor values = known_values_of(tensor);
    if (!values.defined() || values.numel() == 0 || values.numel() > kMostElements) continue;
    const Tensor flags = values.to(at::kBool);
    if (is_or ? flags.all().item<bool>() : !flags.any().item<bool>()) return true;
  }
  return false;
}

std::unique_ptr<Computed> compute(const at::RecordFunction& call, const Followed& op) {
  const auto inputs = call.inputs();
  auto made = std::make_unique<Computed>();
  if (op.kind == Kind::arange) {
    const Tensor& out = inputs.back().toTensor();
    if (!is_plain_dense(out) || !out.is_privateuseone() || !may_be_known(out)) return nullptr;
    const double steps = (inputs[1].toScalar().toDouble() - inputs[0].toScalar().toDouble()) /
                         inputs[2].toScalar().toDouble();
    if (!(steps >= 0 && steps <= kMostElements)) return nullptr;
    made->results = {at::arange(inputs[0].toScalar(), inputs[1].toScalar(), inputs[2].toScalar(),
                                at::device(at::kCPU).dtype(out.scalar_type()))};
    return made;
  }
  const bool logical = op.kind == Kind::all_or || op.kind == Kind::all_and;
  if (logical && absorbs(op.kind, inputs)) {
    made->absorbed = op.kind == Kind::all_or ? 1 : 0;
    return made;
  }
  if (!op.in_place) {
    Stack stack = on_host(inputs);
    if (stack.empty()) return nullptr;
    run_on_host(call, stack);
    for (const IValue& value : stack) {
      if (!value.isTensor()) return nullptr;
      made->results.push_back(value.toTensor());
    }
    return made;
  }
  if (!inputs[0].isTensor()) return nullptr;
  const Tensor& self = inputs[0].toTensor();
  DeviceStorage* storage = own_storage(self);
  if (storage == nullptr || !may_be_known(self)) return nullptr;
  if (op.kind != Kind::overwrites && self.numel() > kMostElements) return nullptr;
  const c10::Storage before = bytes_of(*storage);
  if (!before && !(op.kind == Kind::overwrites && covers(self))) return nullptr;
  made->in_place = fresh_bytes(storage->nbytes());
  if (before) std::memcpy(made->in_place.mutable_data(), before.data(), storage->nbytes());
  // The others are looked up before self is shown, and may be self.
  const Tensor target = over(made->in_place, self);
  std::vector<IValue> rest(inputs.begin() + 1, inputs.end());
  const bool reads_device = std::any_of(rest.begin(), rest.end(), [](const IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().is_privateuseone();
  });
  Stack stack;
  if (reads_device) {
    Stack shown = on_host(c10::ArrayRef<const IValue>(rest.data(), rest.size()));
    if (shown.empty()) return nullptr;
    stack = std::move(shown);
  } else {
    for (const IValue& value : rest) {
      const bool tensor = value.isTensor() && value.toTensor().defined();
      if (tensor && (!value.toTensor().is_cpu() || !is_plain_dense(value.toTensor()))) {
        return nullptr;
      }
      if (value.isTensorList() || value.isOptionalTensorList()) return nullptr;
    }
    stack = std::move(rest);
  }
  stack.insert(stack.begin(), target);
  run_on_host(call, stack);
  return made;
}

std::unique_ptr<Computed> spread(const at::RecordFunction& call, const Followed& op) {
  const auto of = [](const Tensor& tensor) { return spread_of(tensor); };
  auto made = std::make_unique<Computed>();
  made->spreading = op.spread(call.name(), call.inputs(), of);
  return made->spreading.has_value() ? std::move(made) : nullptr;
}

// Whether the first operand, or the first of a list, is of the device.
bool on_device(c10::ArrayRef<const IValue> inputs) {
  if (inputs.empty()) return false;
  std::optional<bool> found;
  each_tensor(inputs[0], [&](const Tensor& tensor) {
    if (!found.has_value()) found = tensor.is_privateuseone() && is_plain_dense(tensor);
  });
  return found.value_or(false);
}

template <class Do>
std::unique_ptr<Computed> asked(const Do& act) {
  const at::DisableRecordFunctionGuard unseen;
  const c10::impl::ExcludeDispatchKeyGuard plain(skipped_keys());
  const HostMemoryScope host_memory;
  try {
    return act();
  } catch (const std::exception&) {  // the operator itself says what is wrong
    return nullptr;
  }
}

std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& call) {
  if (npusim::detail::t_state.launching != npusim::detail::Launching::directly) return nullptr;
  const Followed& op = followed(call);
  const auto inputs = call.inputs();
  std::unique_ptr<Computed> made;
  if (op.kind != Kind::other && !npusim::detail::takes_slow_path(npusim::detail::kCapturing)) {
    const auto concerns = [&](const IValue& value) {
      bool concerned = false;
      each_tensor(value, [&](const Tensor& tensor) {
        DeviceStorage* storage = own_storage(tensor);
        if (storage == nullptr || !may_be_known(tensor)) return;
        concerned |= storage->known.load(std::memory_order_relaxed) != nullptr ||
                     op.kind == Kind::overwrites;
      });
      return concerned;
    };
    if (op.kind == Kind::arange || std::any_of(inputs.begin(), inputs.end(), concerns)) {
      made = asked([&] { return compute(call, op); });
    }
  }
  if (op.spread != nullptr && made == nullptr && on_device(inputs) &&
      !npusim::detail::takes_slow_path(npusim::detail::kCapturing)) {
    made = asked([&] { return spread(call, op); });
  }
  for (std::size_t i = 0; i < std::min(inputs.size(), op.written.size()); ++i) {
    if (op.written[i]) each_tensor(inputs[i], forget_written);
  }
  return made;
}

void settle(const Tensor& output, const Tensor& values) {
  DeviceStorage* storage = own_storage(output);
  if (storage == nullptr || !may_be_known(output) || !covers(output) ||
      output.scalar_type() != values.scalar_type() || output.sizes() != values.sizes()) {
    return;
  }
  const c10::Storage bytes = fresh_bytes(storage->nbytes());
  over(bytes, output).copy_(values);
  install(*storage, bytes);
}

void settle(const Tensor& output, Spreading& made) {
  if (made.values.defined()) {
    if (made.values.numel() != output.numel()) return;
    return settle(output, made.values.to(output.scalar_type()).view(output.sizes()));
  }
  DeviceStorage* storage = own_storage(output);
  if (storage == nullptr || !covers(output) || made.dim >= output.dim()) return;
  if (made.dim >= 0) {
    made.spread.width = output.size(made.dim);
    made.spread.stride = output.stride(made.dim);
  }
  install(*storage, {}, made.spread);
}

void after(const at::RecordFunction& call, at::ObserverContext* context) {
  auto* made = static_cast<Computed*>(context);
  if (made == nullptr || call.outputs().empty() || !call.outputs()[0].isTensor()) return;
  const at::DisableRecordFunctionGuard unseen;
  const c10::impl::ExcludeDispatchKeyGuard plain(skipped_keys());
  const HostMemoryScope host_memory;
  const Tensor& first = call.outputs()[0].toTensor();
  if (made->spreading.has_value()) {
    const std::size_t which = made->spreading->result;
    if (which >= call.outputs().size() || !call.outputs()[which].isTensor()) return;
    return settle(call.outputs()[which].toTensor(), *made->spreading);
  }
  if (made->in_place) {
    if (DeviceStorage* storage = own_storage(first)) install(*storage, made->in_place);
    return;
  }
  if (made->absorbed >= 0) {
    if (own_storage(first) == nullptr || !may_be_known(first)) return;
    const Tensor all =
        at::full(first.sizes(), made->absorbed, at::device(at::kCPU).dtype(first.scalar_type()));
    return settle(first, all);
  }
  for (std::size_t i = 0; i < std::min(made->results.size(), call.outputs().size()); ++i) {
    if (call.outputs()[i].isTensor()) settle(call.outputs()[i].toTensor(), made->results[i]);
  }
}

}  // namespace

void begin_known_values() {
  forget_values();
  g_handle = at::addGlobalCallback(at::RecordFunctionCallback(&before, &after)
                                       .needsInputs(true)
                                       .needsOutputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
}

void end_known_values() {
  if (g_handle != at::INVALID_CALLBACK_HANDLE) at::removeCallback(g_handle);
  g_handle = at::INVALID_CALLBACK_HANDLE;
  forget_values();
}

at::Tensor known_values_of(const at::TensorBase& tensor) {
  DeviceStorage* storage = own_storage(tensor);
  if (storage == nullptr || !may_be_known(tensor)) return {};
  const c10::Storage bytes = bytes_of(*storage);
  return bytes ? over(bytes, tensor) : Tensor();
}

int64_t selected_in(const char* op, const at::TensorBase& mask) {
  if (const Tensor values = known_values_of(mask); values.defined()) {
    const HostMemoryScope host_memory;
    return values.count_nonzero().item<int64_t>();
  }
  const auto spread = spread_of(mask);
  const auto marks = spread.has_value() ? marks_in(*spread, mask) : std::nullopt;
  if (!marks.has_value()) return selected_of(op, mask.numel());
  count_answer(op, static_cast<double>(*marks), "elements");
  return *marks;
}

int64_t classes_in(const at::TensorBase& labels) {
  const auto spread = spread_of(labels);
  return spread.has_value() && spread->labels ? spread->classes : 0;
}

void know_values(const at::TensorBase& tensor, const at::Tensor& values) {
  forget_values(tensor);
  if (!values.defined()) return;
  const at::DisableRecordFunctionGuard unseen;
  const c10::impl::ExcludeDispatchKeyGuard plain(skipped_keys());
  const HostMemoryScope host_memory;
  settle(Tensor(tensor), values);
}

void forget_values(const at::TensorBase& tensor) { forget_written(Tensor(tensor)); }

void forget_values(c10::StorageImpl& storage) {
  if (DeviceStorage* ours = as_device_storage(&storage)) install(*ours, {});
}

void forget_values() noexcept { g_epoch.fetch_add(1); }

}  // namespace torch_npusim
