// SPDX-License-Identifier: BSD-3-Clause
// Copies: host to device and back, within a device, between devices. Bytes move with one memcpy
// where layouts agree; otherwise the CPU copy kernel converts dtype, strides, conj and neg bits on
// host views. A blocking copy between host and device makes the host wait (rule C4).
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/zero.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <limits>

#include "csrc/cost/precision.h"
#include "csrc/cuda_rules/cuda_rules.h"
#include "csrc/launch/launch.h"
#include "csrc/observers/observed_operand.h"
#include "csrc/operands/alignment.h"
#include "csrc/operands/host_view.h"
#include "csrc/routes/cpu_call.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/runtime/cuda_names.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/dry_answers.h"
#include "csrc/runtime/known_values.h"
#include "csrc/runtime/pinned_allocator.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

using npusim::CommandKind;

// `pinned`: whether the side on the host is.
CommandKind kind_of(const at::Tensor& to, const at::Tensor& from, bool pinned) {
  if (!from.is_privateuseone()) {
    return pinned ? CommandKind::copy_h2d : CommandKind::copy_h2d_pageable;
  }
  if (!to.is_privateuseone()) {
    return pinned ? CommandKind::copy_d2h : CommandKind::copy_d2h_pageable;
  }
  return to.device() == from.device() ? CommandKind::copy_d2d : CommandKind::copy_peer;
}

bool is_pinned(const at::Tensor& to, const at::Tensor& from) {
  const at::Tensor* host = from.is_cpu() ? &from : (to.is_cpu() ? &to : nullptr);
  return host != nullptr && npusim::is_pinned(host->storage().data());
}

bool same_bytes(const at::Tensor& to, const at::Tensor& from) {
  return to.dtype() == from.dtype() && to.is_conj() == from.is_conj() &&
         to.is_neg() == from.is_neg() && to.sizes() == from.sizes() &&
         to.strides() == from.strides() && to.is_non_overlapping_and_dense() && !to.is_quantized();
}

bool overlapping(const at::Tensor& to, const at::Tensor& from, std::size_t bytes) {
  const auto a = reinterpret_cast<std::uintptr_t>(to.const_data_ptr());
  const auto b = reinterpret_cast<std::uintptr_t>(from.const_data_ptr());
  return a < b + bytes && b < a + bytes;
}

// A copy is asynchronous if the host side cannot change under it: none, or pinned memory.
bool may_run_async(CommandKind kind, bool non_blocking) {
  const bool on_device = kind == CommandKind::copy_d2d || kind == CommandKind::copy_peer;
  const bool pinned = kind == CommandKind::copy_h2d || kind == CommandKind::copy_d2h;
  return on_device || (pinned && non_blocking);
}

// What the sync debug mode calls it. CUDA's own does not report those that are not to block.
const char* name_of_wait(CommandKind kind, bool non_blocking) {
  if (kind == CommandKind::copy_d2h || kind == CommandKind::copy_d2h_pageable) {
    return non_blocking ? "aten::copy_ to pageable memory" : "aten::copy_ to the host";
  }
  return non_blocking ? "aten::copy_ from pageable memory" : "aten::copy_ to the device";
}

// Over a link each byte passes once; within a device it is read and written. The precision is that
// to which floats are converted, by which profiles tell conversions; of other copies `other`.
npusim::Cost cost_of(const at::Tensor& to, const at::Tensor& from, CommandKind kind) {
  npusim::Cost cost;
  cost.bytes = kind == CommandKind::copy_d2d
                   ? touched_bytes(from, to) + touched_bytes(to)
                   : static_cast<double>(from.numel()) * static_cast<double>(from.itemsize());
  if (kind == CommandKind::copy_d2d) {
    cost.cached = std::max(0.0, touched_bytes(from, to) - touched_bytes(from));
  }
  cost.precision =
      to.dtype() == from.dtype() ? npusim::Precision::other : precision_of(to.scalar_type());
  return cost;
}

// Numbers beyond the range of an integer dtype: the CPU's conversion gives its least number, CUDA's
// the nearest one, and 0 for NaN in 32 bits (PTX, cvt).
void saturate(at::Tensor& to, const at::Tensor& from) {
  const bool is_int = to.scalar_type() == at::kInt;
  if (!at::isFloatingType(from.scalar_type())) return;
  if (!is_int && to.scalar_type() != at::kLong) return;
  const at::Tensor numbers = from.itemsize() == 1 ? from.to(at::kFloat) : from;  // no comparisons
  if (is_int) {
    to.masked_fill_(numbers.ge(2147483648.0), std::numeric_limits<int32_t>::max());
    to.masked_fill_(numbers.isnan(), 0);
  } else {
    to.masked_fill_(numbers.ge(9223372036854775808.0), std::numeric_limits<int64_t>::max());
  }
}

// The kernel of CUDA that copies between layouts has room for 25 dimensions that do not merge.
void check_dimensions(const at::Tensor& to, const at::Tensor& from) {
  constexpr int kMost = 25;  // OffsetCalculator.cuh MAX_DIMS
  if (C10_LIKELY(to.dim() <= kMost) || !are_cuda_rules_in_force()) return;
  const auto walk = at::TensorIteratorConfig()
                        .add_output(to)
                        .add_const_input(from)
                        .resize_outputs(false)
                        .check_all_same_dtype(false)
                        .check_all_same_device(false)
                        .build();
  TORCH_CHECK(walk.ndim() <= kMost,
              "tensor has too many (>25) dims\naten::copy_ takes this on the CPU, and not on CUDA: "
              "merge dimensions first. (NPUSIM_RULES=cuda)");
}

void run_copy(const at::Tensor& to, const at::Tensor& from, npusim::Stream& stream,
              CommandKind kind) {
  const auto bytes = static_cast<std::size_t>(from.numel()) * from.dtype().itemsize();
  if (same_bytes(to, from) && !overlapping(to, from, bytes)) {
    const CopyOperands operands(to, from);
    npusim::copy(to.mutable_data_ptr(), from.const_data_ptr(), bytes, stream, /*blocking=*/false);
    return;
  }
  check_dimensions(to, from);
  const bool as_cuda = are_cuda_rules_in_force() && to.dtype() != from.dtype();
  npusim::submit(stream, npusim::CommandInfo{"aten::copy_", kind, cost_of(to, from, kind)}, [&] {
    const NoWrappers no_wrappers;
    CpuCall call("aten::copy_", static_cast<c10::DeviceIndex>(stream.device()));
    at::Tensor target = call.view(to, /*written=*/true);
    const at::Tensor source = call.view(from, /*written=*/false);
    at::native::copy_(target, source, /*non_blocking=*/false);
    if (C10_UNLIKELY(as_cuda) && from.is_privateuseone()) saturate(target, source);
    call.finish();
  });
}

// A dry run has the values that it knows, and zeros.
void answer_copy(const at::Tensor& to, const at::Tensor& from) {
  const at::Tensor known = known_values_of(from);
  if (known.defined()) {
    to.copy_(known);
    return;
  }
  to.zero_();
  count_answer("aten::copy_", static_cast<double>(to.numel()), "zeros");
}

// The copy runs on the current stream of the device; between devices on the source's, and the
// destination's waits for it, as on CUDA.
void copy_on_stream(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const CommandKind kind = kind_of(to, from, is_pinned(to, from));
  const at::Tensor& on = from.is_privateuseone() ? from : to;
  npusim::Stream& stream = npusim::current_stream(on.device().index());
  const bool async = may_run_async(kind, non_blocking);
  const auto run = [&] {
    if (kind == CommandKind::copy_peer) {
      npusim::Event ready(to.device().index(), /*timing=*/false);
      ready.record(npusim::current_stream(to.device().index()));
      ready.block(stream);
    }
    run_copy(to, from, stream, kind);
    if (kind == CommandKind::copy_peer) {
      npusim::Event copied(from.device().index(), /*timing=*/false);
      copied.record(stream);
      copied.block(npusim::current_stream(to.device().index()));
    }
  };
  translated([&] {
    if (async) return run();
    const HostWait wait(name_of_wait(kind, non_blocking), stream);
    run();
  });
  if (C10_UNLIKELY(npusim::dry()) && to.is_cpu()) answer_copy(to, from);
  if (async && kind != CommandKind::copy_d2d && kind != CommandKind::copy_peer) {
    const at::Tensor& host = from.is_cpu() ? from : to;
    record_pinned_stream(host.storage().data_ptr(), torch_stream(stream));
  }
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  TORCH_CHECK(self.defined() && source.defined(), "copy_: both tensors must be defined");
  TORCH_CHECK_NOT_IMPLEMENTED(
      (self.is_cpu() || self.is_privateuseone()) && (source.is_cpu() || source.is_privateuseone()),
      "npusim copies between the CPU and npusim devices, got ", source.device(), " to ",
      self.device(), "; copy through the CPU");
  TORCH_CHECK_NOT_IMPLEMENTED(!source.is_sparse() && !self.is_sparse(), "copy_() between layouts ",
                              source.layout(), " and ", self.layout(),
                              " is not supported; convert with to_dense() first");
  TORCH_CHECK(!self._is_zerotensor(),
              "ZeroTensors are immutable. Please materialize the tensor using `.clone()`, if you "
              "want a mutable zero tensor.");
  at::Tensor from = source;
  if (self.sizes() != source.sizes()) {
    from = source.expand(self.sizes());
    at::assert_no_partial_overlap(self, source);  // the expanded source's cannot be told
  }
  if (self.numel() == 0) return self;
  if (C10_UNLIKELY(from._is_zerotensor())) return at::zero_(self);  // it has no memory to read
  check_within_storage("aten::copy_", self);
  check_within_storage("aten::copy_", from);
  check_alignment("aten::copy_", self);
  check_alignment("aten::copy_", from);
  copy_on_stream(self, from, non_blocking);
  return self;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& to, bool non_blocking) {
  at::Tensor target = to;
  return copy_(target, source, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& to) {
  at::native::resize_output(to, source.sizes());
  return copy_from(source, to, /*non_blocking=*/false);
}

// evenly_distribute_backward() reads a value where is_cuda() is false, which it is in C++.
bool reads_nothing_on_cuda() {
  if (!is_called_cuda()) return false;
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return false;
  const std::string name = node->name();
  return name == "MaxBackward1" || name == "MinBackward1" || name == "MedianBackward0" ||
         name == "NanmedianBackward0";
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  check_within_storage("aten::_local_scalar_dense", self);
  const bool reads = !reads_nothing_on_cuda();
  if (reads) {
    translated([&] {
      if (as_cuda()) {
        const auto bytes = static_cast<double>(self.itemsize());
        npusim::submit(npusim::current_stream(self.device().index()),
                       {"aten::_local_scalar_dense", npusim::CommandKind::copy_d2h, {0, bytes}},
                       [] {});
      }
      const HostWait wait("aten::_local_scalar_dense",
                          npusim::current_stream(self.device().index()));
    });
  }
  if (C10_UNLIKELY(npusim::dry())) {
    const at::Tensor known = known_values_of(self);
    if (known.defined()) return at::native::_local_scalar_dense_cpu(known);
    return value_of("aten::_local_scalar_dense", self);
  }
  if (reads) note_host_read("aten::_local_scalar_dense", self);
  return at::native::_local_scalar_dense_cpu(host_view(self));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) { m.impl("copy_", &copy_); }

// _copy_from reads the bits itself; without these the clone that would resolve them copies again,
// and recurses until the stack ends.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace torch_npusim
