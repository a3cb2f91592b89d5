// SPDX-License-Identifier: BSD-3-Clause
// The one capture that may be going on.
#include "backend/graph.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/error.h"
#include "backend/stream.h"

namespace npusim {

namespace {

struct Capture {
  std::mutex mutex;  // guards the rest
  const Stream* stream = nullptr;
  std::vector<const Stream*> streams;  // that one, and those that have joined
  CaptureMode mode = CaptureMode::global;
  std::thread::id thread;
  std::string refused;
};
Capture& capture() {
  static auto* const kCapture = new Capture();  // leaked: waits happen while the process exits
  return *kCapture;
}

}  // namespace

void begin_capture(const Stream& stream, CaptureMode mode) {
  Capture& current = capture();
  const std::lock_guard lock(current.mutex);
  NPUSIM_CHECK(current.stream == nullptr,
               "a graph is being captured already; end that capture before beginning another");
  current.stream = &stream;
  current.streams = {&stream};
  current.mode = mode;
  current.thread = std::this_thread::get_id();
  current.refused.clear();
  detail::set_slow_path(detail::kCapturing);
}

std::string end_capture() noexcept {
  Capture& current = capture();
  const std::lock_guard lock(current.mutex);
  detail::clear_slow_path(detail::kCapturing);
  current.stream = nullptr;
  current.streams.clear();
  return std::move(current.refused);
}

void join_capture(const Stream& stream) noexcept {
  Capture& current = capture();
  const std::lock_guard lock(current.mutex);
  if (current.stream != nullptr) current.streams.push_back(&stream);
}

void invalidate_capture(const std::string& why) noexcept {
  Capture& current = capture();
  const std::lock_guard lock(current.mutex);
  if (current.stream != nullptr && current.refused.empty()) current.refused = why;
}

void detail::refuse_uncaptured(const char* name, const Stream& stream) {
  Capture& current = capture();
  const std::lock_guard lock(current.mutex);
  if (std::find(current.streams.begin(), current.streams.end(), &stream) == current.streams.end()) {
    return;
  }
  if (current.refused.empty()) current.refused = name;
  const bool is_operator = std::string_view(name).find("::") != std::string_view::npos;
  throw InvalidArgument(
      join("operation not permitted when stream is capturing: ", name,
           is_operator ? " was called with torch's dispatch modes off, so the graph does not see "
                         "it. Call it outside of the capture."
                       : " is not an operator of torch's dispatcher, and a graph holds only these. "
                         "Call it outside of the capture."));
}

void detail::refuse_wait(const char* what, const Stream* stream) {
  Capture& current = capture();
  const std::lock_guard lock(current.mutex);
  if (current.stream == nullptr) return;
  const bool own = current.thread == std::this_thread::get_id();
  const bool refused = stream == current.stream || current.mode == CaptureMode::global ||
                       (current.mode == CaptureMode::own_thread && own);
  if (!refused) return;
  if (current.refused.empty()) current.refused = what;
  throw InvalidArgument(join("operation not permitted when stream is capturing: ", what,
                             ". Do it before the capture begins, or after it has ended."));
}

}  // namespace npusim
