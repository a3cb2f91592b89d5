// SPDX-License-Identifier: BSD-3-Clause
// A PrivateUse1 backend as its author has it in the first week: two devices whose memory is the
// host's, fifteen kernels, and torch's copying fallback for everything else, counted per overload.
// What it lacks is on purpose: a conformance kit must find it (unfold and view_as_real copy through
// the fallback, nothing is registered for autocast, there are no events and no generator).
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/add.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/library.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace torch_minimal {
namespace {

constexpr c10::DeviceIndex kDeviceCount = 2;
thread_local c10::DeviceIndex current_device = 0;

void set_device(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kDeviceCount, "minimal: no device ", static_cast<int>(index),
              "; there are ", static_cast<int>(kDeviceCount));
  current_device = index;
}

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
      TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "minimal: out of memory: ", bytes,
                       " bytes");
    }
    return {data, data, &std::free, c10::Device(c10::kPrivateUse1, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
Memory memory;
REGISTER_ALLOCATOR(c10::kPrivateUse1, &memory)

// Every command has finished when it returns, so one stream per device is enough.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, current_device}; }
  void setDevice(c10::Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    set_device(device.index());
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDeviceCount; }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDeviceCount; }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex before = current_device;
    set_device(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device : exchangeDevice(index);
  }
};
[[maybe_unused]] const bool hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // lives as long as the process
  return true;
}();

// A CPU tensor over the same bytes: what the kernels below compute on.
at::Tensor host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  at::Tensor view = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                                  tensor.options().device(c10::kCPU));
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

// --- kernels ------------------------------------------------------------------------------------

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "minimal: strided tensors only");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "minimal: device memory is not pinned");
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &memory, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "minimal: strided tensors only");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "minimal: device memory is not pinned");
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &memory, kKeys,
                                           c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  host(to).copy_(host(self));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Scalar local_scalar(const at::Tensor& self) { return at::_local_scalar_dense(host(self)); }

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  host(self).fill_(value);
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

// Serves add.Tensor and add_.Tensor too: torch makes those from a structured operator's out= form.
at::Tensor& add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                    at::Tensor& out) {
  for (const at::Tensor* operand : {&self, &other}) {
    TORCH_CHECK(operand->device() == out.device() || (operand->is_cpu() && operand->dim() == 0),
                "minimal: add expects all tensors on ", out.device(), ", but found one on ",
                operand->device());
  }
  at::native::resize_output(out, at::infer_size(self.sizes(), other.sizes()));
  at::Tensor result = host(out);
  at::add_out(result, host(self), host(other), alpha);
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &at::native::resize_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage",
         static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("fill_.Scalar", &fill);
  m.impl("zero_", &zero);
  m.impl("add.out", &add_out);
}

// copy_from() reads the bits itself. Left to torch they would be resolved by a clone, which copies
// with _copy_from, without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

// --- everything else ----------------------------------------------------------------------------

std::mutex counts_mutex;
std::map<std::string, std::int64_t> counts;

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  {
    const std::lock_guard<std::mutex> lock(counts_mutex);
    counts[c10::toString(op.operator_name())] += 1;
  }
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

std::map<std::string, std::int64_t> fallback_counts() {
  const std::lock_guard<std::mutex> lock(counts_mutex);
  return counts;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("device_count", [] { return static_cast<int>(kDeviceCount); });
  m.def("current_device", [] { return static_cast<int>(current_device); });
  m.def("set_device", [](int index) { set_device(static_cast<c10::DeviceIndex>(index)); });
  m.def("fallback_counts", &fallback_counts);
}

}  // namespace torch_minimal
