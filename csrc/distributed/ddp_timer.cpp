// SPDX-License-Identifier: BSD-3-Clause
// The times in DDP's logging data: events on the current stream, as those of c10d's CudaTimer. The
// times between them are virtual; the timestamps are of the wall clock, as c10d's.
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "backend/backend.h"
#include "csrc/errors.h"
#include "csrc/runtime/device.h"

namespace torch_npusim::distributed {
namespace {

class DeviceTimer final : public c10d::Timer {
 public:
  explicit DeviceTimer(c10::Device device) : device_(device.index()) {}

  void record(Event event) override {
    Timer::record(event);
    auto& mark = marks_.at(static_cast<std::size_t>(event));
    if (mark == nullptr) mark = std::make_unique<npusim::Event>(device_, /*timing=*/true);
    translated([&] { mark->record(npusim::current_stream(device_)); });
  }

  // The host waits for both, as under CUDA. Of a backward without communication there is no end.
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto& from = marks_.at(static_cast<std::size_t>(start));
    const auto& to = marks_.at(static_cast<std::size_t>(end));
    if (from == nullptr || to == nullptr) return std::nullopt;
    const double elapsed_ms = translated([&] {
      from->synchronize();
      to->synchronize();
      return from->elapsed_ms(*to);
    });
    if (elapsed_ms < 0) return std::nullopt;
    return static_cast<int64_t>(std::llround(elapsed_ms * 1e6));
  }

 private:
  const int device_;
  std::array<std::unique_ptr<npusim::Event>, 5> marks_;  // by c10d::Timer::Event
};

using c10d::RegistererTimerRegistry;
using c10d::TimerRegistry;
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, DeviceTimer)

}  // namespace
}  // namespace torch_npusim::distributed
