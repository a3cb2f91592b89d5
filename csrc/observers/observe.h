// SPDX-License-Identifier: BSD-3-Clause
// Kernels tell the observers of their operands: every place that hands the address of a tensor's
// bytes to a kernel calls note_use(), which costs one relaxed load without an observer.
// The prefix note_ means, in backend/ and csrc/, that observers hear of it (backend/observer.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "backend/backend.h"

namespace torch_npusim {

enum class Use : std::uint8_t { reads, writes };

namespace detail {
void note_use(const c10::TensorImpl& tensor, const void* storage, Use use);
void note_use(const at::TensorBase& tensor, Use use);
}  // namespace detail

// note_use() adds an operand to the command whose body is running. With `storage` that is where its
// bytes are, whatever `tensor` says: for results that become device tensors later.
inline void note_use(const at::TensorBase& tensor, Use use) {
  if (C10_UNLIKELY(npusim::observed())) detail::note_use(tensor, use);
}
inline void note_use(const c10::TensorImpl& tensor, const void* storage, Use use) {
  if (C10_UNLIKELY(npusim::observed())) detail::note_use(tensor, storage, use);
}

// note_host_read() reports that the host reads a tensor of the device, or of pinned memory; throws
// what an observer throws (a race, where these are errors).
void note_host_read(const char* what, const at::TensorBase& tensor);

}  // namespace torch_npusim
