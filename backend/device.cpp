// SPDX-License-Identifier: BSD-3-Clause
// The device registry. All devices have one specification, so there is one value for all.
#include "backend/device.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

#include "backend/config.h"
#include "backend/dry_run.h"
#include "backend/error.h"
#include "backend/fault.h"
#include "backend/memory.h"
#include "backend/stream.h"
#include "backend/visible_devices.h"

namespace npusim {

constinit thread_local detail::ThreadState detail::t_state;

namespace {

std::mutex g_initialize_mutex;  // guards the one run of the body of initialize()
constinit std::atomic<bool> g_initialized{false};
std::mutex g_visible_mutex;  // guards what visible_devices() has seen
constinit std::atomic<const std::vector<int>*> g_visible_devices{nullptr};  // once in use
constinit std::atomic<const DeviceSpec*> g_spec_of_dry_run{nullptr};

DeviceSpec configured_spec() {
  DeviceSpec spec;
  try {
    spec = named_spec(config().device_spec);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(std::string("NPUSIM_SPEC: ") + error.what());
  }
  if (config().device_memory_bytes != 0) spec.memory_bytes = config().device_memory_bytes;
  return spec;
}

}  // namespace

const std::vector<int>& visible_devices() {
  if (const auto* settled = g_visible_devices.load(std::memory_order_acquire)) return *settled;
  static auto* seen = new std::deque<std::vector<int>>;  // callers keep references
  std::vector<int> now = visible_devices_now();
  const std::lock_guard lock(g_visible_mutex);
  if (seen->empty() || seen->back() != now) seen->push_back(std::move(now));
  return seen->back();
}

int device_count() noexcept {
  try {
    return static_cast<int>(visible_devices().size());
  } catch (...) {  // config() says why to whoever asks; a count cannot
    return 0;
  }
}

bool initialized() noexcept { return g_initialized.load(std::memory_order_acquire); }

void initialize() {
  check_not_forked();
  if (initialized()) return;
  const std::lock_guard lock(g_initialize_mutex);
  if (initialized()) return;
  const Config& configuration = config();
  g_visible_devices.store(&visible_devices(), std::memory_order_release);
  const std::vector<Fault> faults = parse_fault_script(configuration.fault);
  detail::map_device_memory();
  detail::install_fork_handler();
  for (const Fault& fault : faults) inject_fault(fault);
  set_launch_blocking(configuration.launch_blocking);
  g_initialized.store(true, std::memory_order_release);
}

void check_device(int device) {
  check_not_forked();
  const int count = device_count();
  if (count == 0) config();  // an unusable configuration explains itself
  NPUSIM_CHECK(
      device >= 0 && device < count, "invalid device ordinal: there is no npusim device ", device,
      "; ",
      count == 0 ? std::string("no device is visible") : detail::join("expected 0 to ", count - 1),
      " (NPUSIM_DEVICE_COUNT and NPUSIM_VISIBLE_DEVICES say how many there are)");
}

void set_device(int device) {
  check_device(device);
  detail::t_state.device = device;
}

int exchange_device(int device) {
  const int before = current_device();
  set_device(device);
  return before;
}

const DeviceSpec& device_spec(int device) {
  check_device(device);
  static const DeviceSpec* const kSpec = new DeviceSpec(configured_spec());
  const DeviceSpec* of_dry_run = g_spec_of_dry_run.load(std::memory_order_acquire);
  return of_dry_run == nullptr ? *kSpec : *of_dry_run;
}

void begin_dry(const DeviceSpec& spec) {
  initialize();
  const std::lock_guard lock(g_initialize_mutex);
  NPUSIM_CHECK(!dry(), "a dry run is on already; end it before the next");
  // Never deleted: threads may keep what device_spec() returned.
  g_spec_of_dry_run.store(new DeviceSpec(spec), std::memory_order_release);
  detail::set_rates_of_streams(spec);
  detail::set_slow_path(detail::kDry);
}

void end_dry() {
  const std::lock_guard lock(g_initialize_mutex);
  if (!dry()) return;
  detail::clear_slow_path(detail::kDry);
  g_spec_of_dry_run.store(nullptr, std::memory_order_release);
  detail::set_rates_of_streams(device_spec(0));
}

}  // namespace npusim
