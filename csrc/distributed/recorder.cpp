// SPDX-License-Identifier: BSD-3-Clause
// The records of all groups are in one ring, in the order of the calls.
#include "csrc/distributed/recorder.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <utility>

namespace torch_npusim::distributed {

namespace {

constinit std::atomic<std::size_t> g_capacity{2000};  // torch's

std::mutex g_mutex;  // guards the next three, and Standing::is_listed
std::int64_t g_next = 0;
std::deque<std::shared_ptr<FlightEntry>>& ring() {
  static auto* records = new std::deque<std::shared_ptr<FlightEntry>>;
  return *records;
}

std::vector<std::shared_ptr<Standing>>& groups() {
  static auto* made = new std::vector<std::shared_ptr<Standing>>;
  return *made;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void raise_to(std::atomic<std::int64_t>& value, std::int64_t least) {
  std::int64_t old = value.load();
  while (old < least && !value.compare_exchange_weak(old, least)) {
  }
}

}  // namespace

std::size_t capacity() noexcept { return g_capacity.load(); }

void set_capacity(std::size_t records) noexcept { g_capacity.store(records); }

std::shared_ptr<FlightEntry> keep(std::shared_ptr<FlightEntry> record) {
  record->created_ns = now_ns();
  record->frames = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false,
                                                    /*cpp=*/false);
  if (!record->is_transfer) {
    raise_to(record->standing->enqueued, static_cast<std::int64_t>(record->collective));
  }
  const std::lock_guard lock(g_mutex);
  if (!std::exchange(record->standing->is_listed, true)) groups().push_back(record->standing);
  record->id = g_next++;
  while (ring().size() >= capacity()) ring().pop_front();
  ring().push_back(record);
  return record;
}

std::vector<std::shared_ptr<FlightEntry>> kept_records() {
  const std::lock_guard lock(g_mutex);
  return {ring().begin(), ring().end()};
}

std::vector<std::shared_ptr<Standing>> standings() {
  const std::lock_guard lock(g_mutex);
  return groups();
}

void forget_records() {
  const std::lock_guard lock(g_mutex);
  ring().clear();
  g_next = 0;
}

void FlightEntry::take(const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& one : inputs) {
    input_sizes.push_back(one.sizes().vec());
    input_types.push_back(one.scalar_type());
  }
  for (const at::Tensor& one : outputs) {
    output_sizes.push_back(one.sizes().vec());
    output_types.push_back(one.scalar_type());
  }
}

void FlightEntry::start() {
  if (!timed || started_ns.load() != 0) return;
  started_ns = now_ns();
  if (!is_transfer) raise_to(standing->started, static_cast<std::int64_t>(collective));
}

void FlightEntry::end(bool completed, double part_ms) {
  if (timed) duration_ms = static_cast<float>(part_ms);
  if (--parts > 0) return;
  if (completed) {
    completed_ns = now_ns();
    if (!is_transfer) raise_to(standing->completed, static_cast<std::int64_t>(collective));
  }
  retired = true;
}

}  // namespace torch_npusim::distributed
