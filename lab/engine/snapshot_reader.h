// SPDX-License-Identifier: BSD-3-Clause
// SnapshotReader: the tables in a memory snapshot of torch, from its pickle, with frames and stacks
// numbered. What they mean for a trace is the importer's to say (npusim_lab/snapshot_import.py).
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "lab/engine/byte_source.h"
#include "lab/engine/pickle_values.h"

namespace npusim::lab {

// A recorded number that only names something: of a stream, or half of a pool's.
struct RecordedNumber {
  bool is_negative = false;
  std::uint64_t bits = 0;  // two's complement
  auto operator<=>(const RecordedNumber&) const = default;
};

// Of one device. `stream`, `pool` and `stack` are positions in the lists below.
struct SnapshotTables {
  struct {
    std::vector<std::uint8_t> op;  // of event.h; a bare annotation is a mark
    std::vector<std::uint64_t> address, bytes, time_us;
    std::vector<std::uint32_t> stream, pool, stack;
  } entries;
  struct {  // at the end; of expandable ones each contiguous run of pages
    std::vector<std::uint64_t> address, bytes;
    std::vector<std::uint32_t> stream, pool;
    std::vector<std::uint8_t> is_large, is_expandable;
  } segments;
  struct {                                      // allocated or pending at the end, each once
    std::vector<std::uint64_t> address, bytes;  // as requested
    std::vector<std::uint64_t> block_bytes;     // as set aside
    std::vector<std::uint32_t> stream, pool, stack;
    std::vector<std::uint8_t> is_pending;
  } blocks;
  std::vector<RecordedNumber> streams;                           // 0 is number 0
  std::vector<std::pair<RecordedNumber, RecordedNumber>> pools;  // (0, 0) is number 0
  struct Frame {
    std::string file, function;
    std::int64_t line = 0;
  };
  std::vector<Frame> frames;
  std::vector<std::vector<std::uint32_t>> stacks;  // of frames, innermost first; 0 is empty
};

class SnapshotReader {
 public:
  // Throws InvalidArgument if the bytes are no snapshot, or ask for anything but values.
  explicit SnapshotReader(ByteSource source);

  // devices() are those that have segments or a history, ascending.
  const std::vector<std::int64_t>& devices() const noexcept { return devices_; }
  // used_devices() are those of which the history says that they were used, ascending.
  const std::vector<std::int64_t>& used_devices() const noexcept { return used_devices_; }
  // settings() is what PYTORCH_ALLOC_CONF was in the recorded run, where the snapshot says it.
  const std::string& settings() const noexcept { return settings_; }
  // has_whole_history() is whether nothing of the past must be inferred: npusim's recordings also
  // say what torch's snapshots leave out.
  bool has_whole_history() const noexcept { return has_whole_history_; }
  // tables() throws InvalidArgument naming the entry or segment that cannot be.
  SnapshotTables tables(std::int64_t device) const;

 private:
  std::uint64_t file_bytes_;
  PickleValues values_;
  PickleItems segments_, histories_;
  std::vector<std::int64_t> devices_, used_devices_;
  std::string settings_;
  bool has_whole_history_ = false;
};

}  // namespace npusim::lab
