// SPDX-License-Identifier: BSD-3-Clause
// CpuCall: one call of a CPU kernel on host views of device tensors, and the way back. In a dry run
// the kernel is that of the Meta key, and the views have shapes only (dry_call.cpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include "backend/backend.h"
#include "csrc/runtime/scratch_allocator.h"

namespace torch_npusim {

// CpuCall remembers which view stands for which operand, turns the kernel's results into device
// tensors without copying, and takes over storages that the kernel resized.
class CpuCall : private CallMemory {
 public:
  // What the kernel does with its operands. Where it reads them only, nobody asks whether two of
  // them share a storage, and a view does without the storage's twin. A kernel that reads behind
  // expanded operands gets copies of these.
  enum class Access : std::uint8_t { reads, writes, reads_behind };

  // `operands`: at most so many will be shown, so that references to their views hold.
  CpuCall(const char* op, c10::DeviceIndex device, std::size_t operands = 0,
          Access access = Access::writes)
      : CallMemory(device, !npusim::dry()), op_(op), device_(device), access_(access) {
    operands_.reserve(operands);
  }
  ~CpuCall();
  CpuCall(const CpuCall&) = delete;
  CpuCall& operator=(const CpuCall&) = delete;

  c10::DeviceIndex device() const noexcept { return device_; }

  // tell_apart() is for a call that allocates otherwise with other flags: its boolean arguments, as
  // a number. Call it before the kernel.
  void tell_apart(std::uint64_t flags) noexcept { flags_ = flags; }

  // kernel() is the dispatch key of the kernel that the views are for.
  c10::DispatchKey kernel() const noexcept {
    return C10_UNLIKELY(dry_) ? c10::DispatchKey::Meta : c10::DispatchKey::CPU;
  }

  // view() returns the same view for the same operand; a tensor that is not on the device is
  // returned as it is. `written`: the kernel may write to it, resize it or replace its storage.
  // The caller keeps operands alive for as long as the call.
  at::Tensor view(const at::Tensor& operand, bool written) { return shown(operand, written); }

  // shown() is view() without a second reference; see the constructor.
  at::Tensor& shown(const at::Tensor& operand, bool written);

  // mirror_requires_grad() marks the views of operands that require gradients: some sparse kernels
  // ask, to know whether the backward will need their second result.
  void mirror_requires_grad();

  // finish() carries new sizes, strides and storages of written operands over to the operands.
  // Call it once, after the kernel and before result().
  void finish();

  // result() returns, for a tensor that the kernel returned: the operand, if it is an operand's
  // view; a device view, if it lies on an operand's storage; else a tensor that adopts the block
  // the kernel allocated, or in a first call its copy (scratch_allocator.h). Anything else is
  // copied to the device, or refused when NPUSIM_FALLBACK=error.
  at::Tensor result(at::Tensor host);

 private:
  std::uint64_t signature() const override;

  struct Operand {
    c10::TensorImpl* device;
    at::Tensor view;
    bool written;
    bool realigned;  // the view is an aligned copy (NPUSIM_STRICT_ALIGN=copy)
    bool is_member;  // of the sparse operand before it, and written if that is
  };
  struct Adopted {
    c10::StorageImpl* host;
    c10::Storage device;
  };

  at::Tensor shape_of(c10::TensorImpl& operand);
  void resize_to(const Operand& operand);
  at::Tensor result_of_shape(const at::Tensor& shape);
  at::Tensor dense_result(at::Tensor host);
  at::Tensor nested_result(const at::Tensor& host);
  at::Tensor quantized_result(const at::Tensor& host);
  at::QuantizerPtr device_quantizer(const at::QuantizerPtr& quantizer);
  at::Tensor sparse_result(const at::Tensor& host);
  at::Tensor compressed_result(const at::Tensor& host);
  c10::Storage storage_for(const at::Tensor& host);
  void remember_members(c10::TensorImpl& operand, const at::Tensor& view);
  void mark_written(Operand& operand);
  void write_back(const Operand& operand);

  const char* op_;
  c10::DeviceIndex device_;
  Access access_;
  std::uint64_t flags_ = 0;
  bool finished_ = false;
  const bool dry_ = npusim::dry();
  c10::SmallVector<Operand, 4> operands_;
  c10::SmallVector<at::Tensor, 0>
      members_;  // of sparse and quantized operands; operands_ points here
  c10::SmallVector<Adopted, 2> adopted_;
  c10::SmallVector<at::Tensor, 0> shapes_;  // results of a dry run that share a storage
};

}  // namespace torch_npusim
