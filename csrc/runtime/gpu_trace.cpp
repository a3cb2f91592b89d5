// SPDX-License-Identifier: BSD-3-Clause
// Streams are told of once for each device; waits come from the listener of backend/.
#include "csrc/runtime/gpu_trace.h"

#include <array>
#include <atomic>

#include "backend/stream_waits.h"

namespace torch_npusim {

using Listener = c10::impl::PyInterpreterVTable;

void trace_new_stream(int device) {
  static std::array<std::atomic<bool>, npusim::kMaxDevices> made{};
  if (made[static_cast<std::size_t>(device)].exchange(true)) return;
  for (int turn = 0; turn < npusim::kStreamsPerPriority; ++turn) {
    for (int level = 0; level < npusim::kPriorityCount; ++level) {
      const int id = 1 + level * npusim::kStreamsPerPriority + turn;
      trace(&Listener::trace_gpu_stream_creation, stream_handle(device, id));
    }
  }
}

namespace {
void trace_wait(const npusim::Stream& stream) {
  trace(&Listener::trace_gpu_stream_synchronization, handle_of(stream));
}
// Waits of operators for their stream are among them, as on CUDA.
[[maybe_unused]] const bool kListens = (npusim::set_stream_wait_listener(&trace_wait), true);
}  // namespace

}  // namespace torch_npusim
