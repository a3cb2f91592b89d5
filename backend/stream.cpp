// SPDX-License-Identifier: BSD-3-Clause
// The streams of all devices, built on first use without a lock, so that noexcept callers and
// forked children may ask for a stream at any time.
#include "backend/stream.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "backend/command.h"
#include "backend/error.h"
#include "backend/fault.h"
#include "backend/graph.h"
#include "backend/observer.h"
#include "backend/promised_end.h"
#include "backend/running_command.h"
#include "backend/slow_path.h"
#include "backend/stream_waits.h"

namespace npusim {

// StreamTable holds the streams of one device: index 0 the default one, then the pool of priority
// 0, then those of -1, -2 and -3. The index is the id.
struct StreamTable {
  StreamTable(int device, const CostRates& rates) {
    for (int index = 0; index < kStreamsPerDevice; ++index) {
      Stream& stream = streams[static_cast<std::size_t>(index)];
      stream.device_ = device;
      stream.id_ = index;
      stream.priority_ = index == 0 ? 0 : -((index - 1) / kStreamsPerPriority);
      stream.rates_ = &rates;
    }
  }
  // Where no device is: a stream that can be named but belongs nowhere.
  static Stream& placeholder() noexcept {
    static constinit CostRates no_cost{};
    static constinit Stream stream;
    [[maybe_unused]] static const bool kReady = (stream.rates_ = &no_cost) != nullptr;
    return stream;
  }

  std::array<Stream, kStreamsPerDevice> streams;
  std::array<std::atomic<unsigned>, kPriorityCount> next{};
};

namespace {

struct AllStreams {
  CostRates rates;
  std::vector<std::unique_ptr<StreamTable>> devices;
};
constinit std::atomic<AllStreams*> g_streams{nullptr};
constinit std::atomic<WaitHook> g_wait_hook{nullptr};

AllStreams& all_streams() {
  AllStreams* streams = g_streams.load(std::memory_order_acquire);
  if (streams != nullptr) [[likely]]
    return *streams;
  auto fresh = std::make_unique<AllStreams>();
  fresh->rates = make_cost_rates(device_spec(0));
  for (int device = 0; device < device_count(); ++device) {
    fresh->devices.push_back(std::make_unique<StreamTable>(device, fresh->rates));
  }
  // Of two threads that build the table one wins; it lives as long as the process.
  if (g_streams.compare_exchange_strong(streams, fresh.get())) streams = fresh.release();
  return *streams;
}

StreamTable& table_of(int device) {
  check_device(device);
  return *all_streams().devices[static_cast<std::size_t>(device)];
}

}  // namespace

void detail::set_rates_of_streams(const DeviceSpec& spec) {
  all_streams().rates = make_cost_rates(spec);
}

bool Stream::query() {
  check_not_forked();
  detail::check_may_wait("asking whether a stream is done", this);
  keep_promises(*this);
  const std::int64_t now_ns = pass_host_ns(rates_->query_ns);
  note_order(OrderKind::query, device_, this, nullptr, 0, rates_->query_ns);
  if (now_ns < done_at_ns()) return false;
  note_order(OrderKind::stream_wait, device_, this);
  if (detail::takes_slow_path(detail::kFaultPending)) detail::report_fault(device_);
  return true;
}

namespace {
std::atomic<StreamWaitListener> g_wait_listener{nullptr};
}  // namespace

void set_stream_wait_listener(StreamWaitListener listener) noexcept {
  g_wait_listener.store(listener, std::memory_order_release);
}

void Stream::synchronize() {
  check_not_forked();
  detail::check_may_wait("waiting for a stream", this);
  if (const auto listener = g_wait_listener.load(std::memory_order_acquire)) listener(*this);
  wait_unheard(*this);
}

void wait_unheard(Stream& stream) {
  check_not_forked();
  detail::check_may_wait("waiting for a stream", &stream);
  keep_promises(stream);
  wait_until_ns(stream.done_at_ns());
  note_order(OrderKind::stream_wait, stream.device(), &stream);
  if (detail::takes_slow_path(detail::kFaultPending)) detail::report_fault(stream.device());
}

void Stream::start_after_ns(std::int64_t time_ns) noexcept {
  std::int64_t earlier_ns = not_before_ns_.load(std::memory_order_relaxed);
  while (earlier_ns < time_ns && !not_before_ns_.compare_exchange_weak(earlier_ns, time_ns)) {
  }
}

void Stream::lock_slow() noexcept {
  const auto wait = [](void* lock) {
    auto& word = *static_cast<std::atomic<std::uint32_t>*>(lock);
    while (word.exchange(2, std::memory_order_acquire) != 0) word.wait(2);
  };
  detail::without_locks(wait, &lock_);
}

void detail::without_locks(void (*wait)(void*), void* argument) {
  const WaitHook hook = g_wait_hook.load(std::memory_order_acquire);
  hook == nullptr ? wait(argument) : hook(wait, argument);
}

void set_wait_hook(WaitHook hook) noexcept { g_wait_hook.store(hook, std::memory_order_release); }

Stream& default_stream(int device) { return table_of(device).streams[0]; }

Stream& next_stream(int device, int priority) {
  StreamTable& table = table_of(device);
  const int level = -std::clamp(priority, kHighestPriority, 0);
  const unsigned turn = table.next[static_cast<std::size_t>(level)].fetch_add(1);
  const std::size_t index = turn % static_cast<unsigned>(kStreamsPerPriority);
  return table.streams[1 + static_cast<std::size_t>(level * kStreamsPerPriority) + index];
}

Stream& stream_from_id(int device, StreamId id) {
  StreamTable& table = table_of(device);
  NPUSIM_CHECK(id >= 0 && id < kStreamsPerDevice, "there is no stream ", id, " on npusim device ",
               device, "; ids run from 0 (default stream) to ", kStreamsPerDevice - 1,
               ": take them from a stream of this process");
  return table.streams[static_cast<std::size_t>(id)];
}

Stream& current_stream(int device) noexcept {
  if (device < 0 || device >= kMaxDevices) return StreamTable::placeholder();
  Stream* current = detail::t_state.current[device];
  if (current != nullptr) return *current;
  const AllStreams* streams = g_streams.load(std::memory_order_acquire);
  if (streams == nullptr) [[unlikely]] {
    try {
      streams = &all_streams();
    } catch (...) {  // no usable device: nothing can be submitted either
      return StreamTable::placeholder();
    }
  }
  if (static_cast<std::size_t>(device) >= streams->devices.size()) {
    return StreamTable::placeholder();
  }
  return streams->devices[static_cast<std::size_t>(device)]->streams[0];
}

void set_current_stream(Stream& stream) noexcept {
  if (stream.device() >= 0) detail::t_state.current[stream.device()] = &stream;
}

std::int64_t device_done_at_ns(int device) noexcept {
  const AllStreams* streams = g_streams.load(std::memory_order_acquire);
  std::int64_t done_at_ns = 0;
  if (streams == nullptr || device < 0 ||
      static_cast<std::size_t>(device) >= streams->devices.size()) {
    return done_at_ns;
  }
  for (const Stream& stream : streams->devices[static_cast<std::size_t>(device)]->streams) {
    done_at_ns = std::max(done_at_ns, stream.done_at_ns());
  }
  return done_at_ns;
}

void synchronize_device(int device) {
  check_device(device);
  detail::check_may_wait("waiting for a device", nullptr);
  if (detail::takes_slow_path(detail::kPromised)) {
    for (Stream& stream : table_of(device).streams) keep_promises(stream);
  }
  wait_until_ns(device_done_at_ns(device));
  note_order(OrderKind::device_wait, device, nullptr);
  if (detail::takes_slow_path(detail::kFaultPending)) detail::report_fault(device);
}

void pass_backlog(int device) noexcept {
  keep_all_promises(device);
  for (int other = 0; other < device_count(); ++other) wait_until_ns(device_done_at_ns(other));
}

namespace {
template <class Use>
void each_stream(const Use& use) {
  for (const auto& table : all_streams().devices) {
    for (Stream& stream : table->streams) use(stream);
  }
}
}  // namespace

// Threads take the turns in one order, and who is in a body wants none.
AllTurns::AllTurns() {
  using Clock = std::chrono::steady_clock;
  NPUSIM_CHECK(!in_command_body(), "the body of a command cannot wait for all other commands");
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(10);
  for (;;) {
    each_stream([](Stream& stream) { keep_promises(stream); });
    each_stream([](Stream& stream) { stream.lock(); });
    if (!TurnlessWork::any()) return;
    each_stream([](Stream& stream) { stream.unlock(); });
    NPUSIM_CHECK(Clock::now() < deadline,
                 "waited 10 s for another thread's operator, whose kernel is Python code, or for "
                 "communication: device memory cannot be shared meanwhile");
    detail::without_locks(
        [](void*) { std::this_thread::sleep_for(std::chrono::microseconds(200)); }, nullptr);
  }
}

AllTurns::~AllTurns() {
  each_stream([](Stream& stream) { stream.unlock(); });
}

void set_launch_blocking(bool enabled) noexcept {
  if (enabled) {
    detail::set_slow_path(detail::kLaunchBlocking);
  } else {
    detail::clear_slow_path(detail::kLaunchBlocking);
  }
}

void detail::settle(Stream& stream) {
  if (takes_slow_path(kObserved)) settle_host_access();
  if (!takes_slow_path(kLaunchBlocking) || t_state.launching == Launching::captured) return;
  keep_promises(stream);
  wait_until_ns(stream.done_at_ns());
  note_order(OrderKind::stream_wait, stream.device(), &stream);
  if (takes_slow_path(kFaultPending)) report_fault(stream.device());
}

}  // namespace npusim
