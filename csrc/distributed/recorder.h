// SPDX-License-Identifier: BSD-3-Clause
// The flight recorder: what the groups of this process were asked for lately, and how far it came.
// torch_npusim/distributed/_recorder.py writes it in the form of torch's.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch {
struct CapturedTraceback;
}

namespace torch_npusim::distributed {

// A group, and how far it has come, in numbers of its collectives from 1 on; -1: none.
struct Standing {
  std::uint64_t uid = 0;  // of the backend
  int rank = 0;           // of this process in the job
  std::string group, description;
  std::vector<int> ranks;
  std::atomic<std::int64_t> enqueued{-1}, started{-1}, completed{-1};
  bool is_listed = false;  // among standings()
};

struct FlightEntry {
  std::int64_t id = 0;
  std::shared_ptr<Standing> standing;
  std::string title;
  std::uint64_t collective = 0, transfer = 0, operation = 0;  // numbers from 1 on
  bool is_transfer = false;
  std::vector<std::vector<std::int64_t>> input_sizes, output_sizes;
  std::vector<at::ScalarType> input_types, output_types;
  std::int64_t timeout_ms = 0;
  std::shared_ptr<torch::CapturedTraceback> frames;
  std::int64_t created_ns = 0;                // of the wall clock, as the next
  std::atomic<std::int64_t> started_ns{0};    // 0: not yet, or it is not timed
  std::atomic<std::int64_t> completed_ns{0};  // 0: not yet
  std::atomic<bool> retired{false};           // it has ended, if by failure
  bool timed = false;
  std::atomic<float> duration_ms{-1};  // in virtual time
  std::atomic<int> parts{1};           // under way

  void take(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs);
  void start();
  // end() counts a part as ended; the last one ends the record.
  void end(bool completed, double part_ms);
};

// capacity() is the number of records that are kept; 0: none.
std::size_t capacity() noexcept;
void set_capacity(std::size_t records) noexcept;
// keep() numbers a record and notes the caller's frames; the oldest one makes room.
std::shared_ptr<FlightEntry> keep(std::shared_ptr<FlightEntry> record);
std::vector<std::shared_ptr<FlightEntry>> kept_records();
// standings() are the groups that have had a record, in the order of their first.
std::vector<std::shared_ptr<Standing>> standings();
void forget_records();

}  // namespace torch_npusim::distributed
