// SPDX-License-Identifier: BSD-3-Clause
// Operators without a kernel run on the CPU, and are counted.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "runtime.h"

namespace mychip {
namespace {

std::mutex counts_mutex;
std::map<std::string, std::int64_t> counts;

// Takes operands of two devices, as the CPU does; others may not.
const std::set<std::string> kAnyDevice = {"aten::index", "aten::_unsafe_index", "aten::index_put_",
                                          "aten::_index_put_impl_", "aten::index_put"};

// Calls f on each tensor in a value, and puts what it returns in its place.
template <class F>
void replace_tensors(c10::IValue& value, F f) {
  if (value.isTensor()) {
    value = f(value.toTensor());
  } else if (value.isTensorList()) {
    const c10::List<at::Tensor> list = value.toTensorList();
    c10::List<at::Tensor> made;
    for (const at::Tensor& tensor : list.vec()) made.push_back(f(tensor));
    value = made;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      made.push_back(tensor ? std::optional(f(*tensor)) : std::nullopt);
    }
    value = made;
  }
}

// Tensors of the device on the CPU, for the time of one operator. Tensors that share memory on the
// device share it there, with the same strides: the operator sees overlaps and layouts as they are.
// (at::native::cpu_fallback() copies every tensor by itself.)
class Twins {
 public:
  // Called for all tensors before the first twin() is made: what an operator uses of each memory.
  void reach(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_privateuseone() || tensor.numel() == 0) return;
    std::int64_t last = tensor.storage_offset() + 1;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
      last += (tensor.size(dim) - 1) * tensor.stride(dim);
    }
    const std::int64_t bytes = tensor.itemsize();
    Memory& memory = memories_[tensor.storage().unsafeGetStorageImpl()];
    memory.begin = std::min(memory.begin, tensor.storage_offset() * bytes / kAligned * kAligned);
    memory.end = std::max(memory.end, last * bytes);
  }

  at::Tensor twin(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
    const auto found = twins_.find(tensor.unsafeGetTensorImpl());
    if (found != twins_.end()) return found->second;
    const at::TensorOptions on_host = tensor.options().device(at::kCPU);
    at::Tensor made;
    if (tensor.numel() == 0) {
      made = at::empty_strided(tensor.sizes(), tensor.strides(), on_host);
    } else {
      made = at::empty({0}, on_host);
      Memory& memory = memories_[tensor.storage().unsafeGetStorageImpl()];
      if (!memory.host) memory.host = copied(tensor, memory);
      made.set_(memory.host, tensor.storage_offset() - memory.begin / tensor.itemsize(),
                tensor.sizes(), tensor.strides());
    }
    made._set_conj(tensor.is_conj());
    made._set_neg(tensor.is_neg());
    originals_[made.unsafeGetTensorImpl()] = tensor;
    return twins_[tensor.unsafeGetTensorImpl()] = made;
  }

  void write_back(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_privateuseone()) return;
    const at::Tensor& made = twins_.at(tensor.unsafeGetTensorImpl());
    if (made.sizes() != tensor.sizes()) {
      tensor.resize_(made.sizes());
      // What an operator resizes, it lays out as its operands lie.
      if (made.is_non_overlapping_and_dense()) tensor.as_strided_(made.sizes(), made.strides());
    }
    at::_copy_from(made, tensor);
  }

  // A result of an operator becomes the tensor whose twin it is, or a copy on the device.
  at::Tensor on_device(const at::Tensor& result, c10::Device device) const {
    if (!result.defined()) return result;
    const auto found = originals_.find(result.unsafeGetTensorImpl());
    return found != originals_.end() ? found->second : result.to(device);
  }

 private:
  static constexpr std::int64_t kAligned = 16;  // a multiple of every dtype's size

  struct Memory {
    std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;  // bytes
    c10::Storage host;
  };

  static c10::Storage copied(const at::Tensor& tensor, const Memory& memory) {
    const std::int64_t bytes = memory.end - memory.begin;
    const at::Tensor host = at::empty({bytes}, at::kByte);
    const auto* from = static_cast<const char*>(tensor.storage().data()) + memory.begin;
    const c10::DeviceIndex device = tensor.device().index();
    check(
        mychip_copy_to_host(device, current_stream(device), host.mutable_data_ptr(), from, bytes));
    return host.storage();
  }

  std::unordered_map<c10::StorageImpl*, Memory> memories_;
  std::unordered_map<c10::TensorImpl*, at::Tensor> twins_, originals_;
};

// The device of the operands, or of `device=`. Raises where they are on two.
c10::Device device_of(const c10::OperatorHandle& op, std::vector<c10::IValue>& arguments) {
  std::optional<c10::Device> found;
  for (c10::IValue& value : arguments) {
    replace_tensors(value, [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_privateuseone() && !found) found = tensor.device();
      return tensor;
    });
    if (value.isDevice() && value.toDevice().is_privateuseone() && !found) found = value.toDevice();
  }
  const c10::Device device = found.value_or(c10::Device(c10::kPrivateUse1, current_device()));
  if (kAnyDevice.count(op.operator_name().name) > 0) return device;
  for (c10::IValue& value : arguments) {
    replace_tensors(value, [&](const at::Tensor& tensor) {
      TORCH_CHECK(!tensor.defined() || tensor.dim() == 0 || tensor.device() == device,
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  device, " and ", tensor.device(), "!");
      return tensor;
    });
  }
  return device;
}

// Random operators draw on the CPU what the device's generator says: equal seeds, equal numbers.
at::Generator cpu_generator(const c10::IValue& value, c10::DeviceIndex device) {
  std::optional<at::Generator> given;
  if (value.isGenerator()) given = value.toGenerator();
  if (given && given->device().is_cpu()) return *given;
  const Draw draw = reserve(given, device, 1);
  return at::detail::createCPUGenerator(draw.seed ^ (draw.offset * 0x9e3779b97f4a7c15u));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  {
    const std::lock_guard<std::mutex> lock(counts_mutex);
    counts[c10::toString(op.operator_name())] += 1;
  }
  const c10::FunctionSchema& schema = op.schema();
  std::vector<c10::IValue> arguments = torch::jit::pop(*stack, schema.arguments().size());
  c10::Device device = device_of(op, arguments);
  if (!device.has_index()) device.set_index(current_device());

  Twins twins;
  for (c10::IValue& value : arguments) {
    replace_tensors(value, [&](const at::Tensor& tensor) { return twins.reach(tensor), tensor; });
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue value = arguments[i];
    replace_tensors(value, [&](const at::Tensor& tensor) { return twins.twin(tensor); });
    if (schema.arguments()[i].name() == "generator") value = cpu_generator(value, device.index());
    if (value.isDevice()) value = c10::Device(at::kCPU);
    torch::jit::push(*stack, std::move(value));
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);

  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    replace_tensors(arguments[i],
                    [&](const at::Tensor& tensor) { return twins.write_back(tensor), tensor; });
  }
  for (std::size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    replace_tensors((*stack)[i],
                    [&](const at::Tensor& result) { return twins.on_device(result, device); });
  }
}

std::map<std::string, std::int64_t> fallback_counts() {
  const std::lock_guard<std::mutex> lock(counts_mutex);
  return counts;
}

}  // namespace mychip
