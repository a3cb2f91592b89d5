// SPDX-License-Identifier: BSD-3-Clause
// The callbacks of torch.cuda._gpu_trace, which torch._C._activate_gpu_trace() turns on for good:
// torch's own interface, called where torch's CUDA build calls it, while npusim is called "cuda".
// Before that a call costs one load.
#pragma once

#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/macros/Macros.h>

#include <type_traits>

#include "backend/backend.h"
#include "csrc/runtime/cuda_names.h"

namespace torch_npusim {

// trace() calls one function of torch's interface, trace_gpu_...(), with handles: addresses of
// events and memory, numbers of streams. It takes the GIL; errors of callbacks are torch's to log.
template <class... Handles>
void trace(void (c10::impl::PyInterpreterVTable::*tell)(c10::DeviceType, Handles...) const,
           std::type_identity_t<Handles>... handles) {
  const c10::impl::PyInterpreter* listener = c10::impl::GPUTrace::get_trace();
  if (C10_LIKELY(listener == nullptr) || !is_called_cuda()) return;
  ((**listener).*tell)(c10::DeviceType::PrivateUse1, handles...);
}

// stream_handle() is a number for each stream of each device, 0 for default streams. It looks like
// an address: CUDA gives the handles 1 and 2 to two default streams, which libraries treat apart.
inline std::uintptr_t stream_handle(int device, int id) noexcept {
  if (id == 0) return 0;
  return ((static_cast<std::uintptr_t>(device) + 1) << 32) + (static_cast<std::uintptr_t>(id) << 4);
}
// stream_of_handle() is the id in a handle; a number too small to be one is an id itself.
inline int stream_of_handle(std::int64_t handle) noexcept {
  return static_cast<int>(handle >> 32 <= 0 ? handle : (handle & 0xFFFF'FFFF) >> 4);
}

// handle_of() is what trace() calls an event, a stream or memory.
inline std::uintptr_t handle_of(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}
inline std::uintptr_t handle_of(const npusim::Stream& stream) noexcept {
  return stream_handle(stream.device(), stream.id());
}

// trace_new_stream() tells of all streams of the device when the program takes the first, which is
// when CUDA makes them.
void trace_new_stream(int device);

}  // namespace torch_npusim
