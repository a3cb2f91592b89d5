// SPDX-License-Identifier: BSD-3-Clause
// The minimum of every backend (memory, views, copies), and two operators of the chip's own, add
// and uniform_.
#include "operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/uniform_ops.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>
#include <limits>
#include <vector>

namespace mychip {

Loop loop_over(const at::Tensor& out, std::initializer_list<at::Tensor> operands) {
  Loop loop{};
  std::vector<at::Tensor> wide{out};
  for (const at::Tensor& tensor : operands) wide.push_back(tensor.expand(out.sizes()));
  for (std::int64_t dim = 0; dim < out.dim(); ++dim) {
    if (out.size(dim) == 1) continue;
    TORCH_CHECK(loop.dims < kDimsMax, "mychip: at most ", kDimsMax, " dimensions");
    loop.sizes[loop.dims] = out.size(dim);
    for (std::size_t k = 0; k < wide.size(); ++k) loop.strides[k][loop.dims] = wide[k].stride(dim);
    ++loop.dims;
  }
  return loop;
}

bool is_for_chip(const at::Tensor& out, std::initializer_list<at::Tensor> operands) {
  bool is = out.is_privateuseone() && out.scalar_type() == at::kFloat;
  for (const at::Tensor& operand : operands) {
    const bool is_number = operand.is_cpu() && operand.dim() == 0;
    TORCH_CHECK(is_number || operand.device() == out.device(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                out.device(), " and ", operand.device(), "!");
    is = is && (is_number ? !operand.is_complex() : operand.scalar_type() == at::kFloat);
    if (is_number && !operand.unsafeGetTensorImpl()->is_wrapped_number()) {
      is = is && operand.scalar_type() != at::kDouble;
    }
  }
  if (!is) return false;
  at::assert_no_internal_overlap(out);
  for (const at::Tensor& operand : operands) {
    if (operand.is_privateuseone()) at::assert_no_partial_overlap(out, operand);
  }
  return true;
}

at::Tensor there(const at::Tensor& operand, const at::Tensor& out) {
  return operand.is_cpu() ? operand.to(at::kFloat).to(out.device()) : operand;
}

void resize_out(const at::Tensor& out, at::IntArrayRef sizes, const at::Tensor& self) {
  TORCH_CHECK(!out.is_same(self) || out.sizes() == sizes, "output with shape ", out.sizes(),
              " doesn't match the broadcast shape ", sizes);
  at::native::resize_output(out, sizes);
}

namespace {

// --- memory and views

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check_layout(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "mychip: strided tensors only");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "mychip: device memory is not pinned");
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  check_layout(layout, pin_memory);
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_layout(layout, pin_memory);
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

void make_room(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  if (self.numel() == 0) return;
  const std::size_t bytes =
      at::detail::computeStorageNbytes(size, stride, self.itemsize(), self.storage_offset());
  if (bytes > self.storage().nbytes()) grow(self.storage(), bytes);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  c10::TensorImpl* tensor = self.unsafeGetTensorImpl();
  if (self.sizes() != size) {
    tensor->set_sizes_contiguous(size);
    make_room(self, self.sizes(), self.strides());
  }
  if (format) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    tensor->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_strided(at::Tensor& self, at::Storage source, std::int64_t offset,
                        at::IntArrayRef size, at::IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride,
                              /*check_offset_in_bounds=*/false);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  if (stride.data() == nullptr) {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  } else {
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  }
  make_room(self, self.sizes(), self.strides());
  return self;
}

at::Tensor& set_whole(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_strided(self, std::move(source), 0, elements, {});
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  allocator()->recordStream(self.storage().data_ptr(), stream);
}

// Whether `self.data = from` may be: torch's own answer knows no PrivateUse1.
bool is_compatible(const at::Tensor& self, const at::Tensor& from) {
  const auto is_plain = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_quantized() &&
           (tensor.is_cpu() || tensor.is_privateuseone());
  };
  return (is_plain(self) && is_plain(from)) ||
         self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

// --- copies

struct CopyArguments {
  Loop loop;
  char* to;
  const char* from;
  std::int64_t element_bytes;
};

void copy_kernel(const void* given) {
  const auto& arguments = *static_cast<const CopyArguments*>(given);
  const std::int64_t bytes = arguments.element_bytes;
  walk(arguments.loop, [&](const auto& at) {
    std::memcpy(arguments.to + at[0] * bytes, arguments.from + at[1] * bytes, bytes);
  });
}

// Contiguous bytes of one dtype, from and to wherever.
void copy_bytes(const at::Tensor& from, const at::Tensor& to) {
  const std::size_t bytes = from.nbytes();
  if (bytes == 0) return;
  void* target = to.mutable_data_ptr();
  const void* source = from.const_data_ptr();
  const c10::DeviceIndex here = from.device().index(), there = to.device().index();
  if (from.is_cpu()) {
    check(mychip_copy_to_device(there, current_stream(there), target, source, bytes));
  } else if (to.is_cpu()) {
    check(mychip_copy_to_host(here, current_stream(here), target, source, bytes));
  } else {
    if (here != there) check(mychip_synchronize(here, current_stream(here)));
    check(mychip_copy_between(there, current_stream(there), target, here, source, bytes));
  }
}

// Both on one device and of one dtype; bits as they are.
void copy_on_device(const at::Tensor& from, const at::Tensor& to) {
  const bool is_one_piece = from.is_contiguous() && to.is_contiguous();
  if (is_one_piece && from.sizes() == to.sizes()) return copy_bytes(from, to);
  launch(to, &copy_kernel,
         CopyArguments{loop_over(to, {from}), static_cast<char*>(to.mutable_data_ptr()),
                       static_cast<const char*>(from.const_data_ptr()),
                       static_cast<std::int64_t>(from.itemsize())});
}

at::Tensor without_bits(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.alias();
  plain._set_conj(false);
  plain._set_neg(false);
  return plain;
}

at::Tensor to_host(const at::Tensor& self) {
  at::Tensor whole = without_bits(self);
  if (!whole.is_contiguous()) {
    const at::Tensor staged = at::empty(self.sizes(), self.options());
    copy_on_device(whole, staged);
    whole = staged;
  }
  const at::Tensor result = at::empty(self.sizes(), self.options().device(at::kCPU));
  copy_bytes(whole, result);
  result._set_conj(self.is_conj());
  result._set_neg(self.is_neg());
  return result;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool /*non_blocking*/) {
  TORCH_CHECK(at::is_expandable_to(self.sizes(), to.sizes()), "mychip: a tensor of shape ",
              self.sizes(), " cannot be copied into one of shape ", to.sizes());
  if (to.numel() == 0) return to;
  at::assert_no_internal_overlap(to);
  if (to.is_cpu()) {
    const_cast<at::Tensor&>(to).copy_(to_host(self));
    return to;
  }
  const bool is_same = self.scalar_type() == to.scalar_type() && self.is_conj() == to.is_conj() &&
                       self.is_neg() == to.is_neg();
  if (is_same && self.device() == to.device()) {
    copy_on_device(without_bits(self), to);
    return to;
  }
  // Values are converted on the host: a kernel of your own is a good third operator.
  at::Tensor values = self.is_cpu() ? self : to_host(self);
  values = values.to(to.scalar_type()).resolve_conj().resolve_neg();
  if (to.is_conj()) values = values.conj().resolve_conj();
  if (to.is_neg()) values = values.neg();
  values = values.contiguous();
  if (to.is_contiguous() && values.sizes() == to.sizes()) {
    copy_bytes(values, to);
  } else {
    const at::Tensor staged = at::empty(values.sizes(), to.options());
    copy_bytes(values, staged);
    copy_on_device(staged, to);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  const_cast<at::Tensor&>(to).resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Scalar local_scalar(const at::Tensor& self) { return at::_local_scalar_dense(to_host(self)); }

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  copy_from(at::scalar_tensor(value, self.options().device(at::kCPU)), self, false);
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

// --- two operators of the chip's own

struct AddArguments {
  Loop loop;
  float* out;
  const float *self, *other;
  float alpha;
};

void add_kernel(const void* given) {
  const auto& arguments = *static_cast<const AddArguments*>(given);
  walk(arguments.loop, [&](const auto& at) {
    arguments.out[at[0]] = arguments.self[at[1]] + arguments.alpha * arguments.other[at[2]];
  });
}

// Serves add.Tensor and add_.Tensor too: torch makes those from a structured operator's out= form.
at::Tensor& add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                    at::Tensor& out) {
  if (!is_for_chip(out, {self, other})) return ON_CPU(add_out, self, other, alpha, out);
  resize_out(out, at::infer_size(self.sizes(), other.sizes()), self);
  const at::Tensor a = there(self, out), b = there(other, out);
  launch(out, &add_kernel,
         AddArguments{loop_over(out, {a, b}), floats(out), read(a), read(b), alpha.toFloat()});
  return out;
}

struct UniformArguments {
  Loop loop;
  float* out;
  float from, span;
  Draw draw;
};

// Of element i: 24 bits of a hash of the seed and offset + i.
void uniform_kernel(const void* given) {
  const auto& arguments = *static_cast<const UniformArguments*>(given);
  std::uint64_t number = arguments.draw.offset;
  walk(arguments.loop, [&](const auto& at) {
    std::uint64_t bits = arguments.draw.seed + 0x9e3779b97f4a7c15u * ++number;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    const float unit = static_cast<float>((bits ^ (bits >> 31)) >> 40) * 0x1p-24f;
    arguments.out[at[0]] = arguments.from + arguments.span * unit;
  });
}

at::Tensor& uniform(at::Tensor& self, double from, double to,
                    std::optional<at::Generator> generator) {
  const bool is_finite = from <= to && to - from <= std::numeric_limits<float>::max();
  if (!is_finite || !is_for_chip(self, {})) return ON_CPU(uniform_, self, from, to, generator);
  const Draw draw = reserve(generator, self.device().index(), self.numel());
  const auto span = static_cast<float>(to - from);
  launch(self, &uniform_kernel,
         UniformArguments{loop_over(self, {}), floats(self), static_cast<float>(from), span, draw});
  return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &resize);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("set_.source_Storage_storage_offset", &set_strided);
  m.impl("record_stream", &record_stream);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("_has_compatible_shallow_copy_type", &is_compatible);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("fill_.Scalar", &fill);
  m.impl("zero_", &zero);
  m.impl("add.out", &add_out);
  m.impl("uniform_", &uniform);
}

// copy_from() reads the bits itself. Left to torch they would be resolved by a clone, which copies
// with _copy_from, without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace mychip
