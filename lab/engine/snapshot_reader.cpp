// SPDX-License-Identifier: BSD-3-Clause
// From pickled dictionaries to tables; every value is checked for its kind before it is used.
#include "lab/engine/snapshot_reader.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>
#include <unordered_map>

#include "allocator/config.h"
#include "allocator/error.h"
#include "lab/engine/event.h"
#include "lab/engine/names.h"
#include "lab/engine/pickle_reader.h"

namespace npusim::lab {
namespace {

using Kind = PickleValue::Kind;

enum Key : std::uint8_t {
  kSegments,
  kDeviceTraces,
  kDevice,
  kAddress,
  kTotalSize,
  kStream,
  kSegmentPoolId,
  kPoolId,
  kBlocks,
  kSize,
  kRequestedSize,
  kState,
  kFrames,
  kAction,
  kAddr,
  kDeviceFree,
  kTimeUs,
  kFilename,
  kLine,
  kName,
  kAllocatorSettings,
  kAllocConf,
  kCudaAllocConf,
  kWholeHistory,
  kSegmentType,
  kIsExpandable,
};
constexpr std::array<std::string_view, 26> kKeys = {"segments",
                                                    "device_traces",
                                                    "device",
                                                    "address",
                                                    "total_size",
                                                    "stream",
                                                    "segment_pool_id",
                                                    "pool_id",
                                                    "blocks",
                                                    "size",
                                                    "requested_size",
                                                    "state",
                                                    "frames",
                                                    "action",
                                                    "addr",
                                                    "device_free",
                                                    "time_us",
                                                    "filename",
                                                    "line",
                                                    "name",
                                                    "allocator_settings",
                                                    "PYTORCH_ALLOC_CONF",
                                                    "PYTORCH_CUDA_ALLOC_CONF",
                                                    "whole_history",
                                                    "segment_type",
                                                    "is_expandable"};

struct ActionName {
  std::string_view name;
  Op op;
};
constexpr ActionName kActions[] = {
    {"alloc", Op::malloc},
    {"free_requested", Op::free_requested},
    {"free_completed", Op::free_completed},
    {"segment_alloc", Op::segment_alloc},
    {"segment_free", Op::segment_free},
    {"segment_map", Op::segment_map},
    {"segment_unmap", Op::segment_unmap},
    {"oom", Op::oom},
    {"snapshot", Op::snapshot},
    {"annotate", Op::mark},
    {"empty_cache", Op::empty_cache},
    {"segment_reserve", Op::segment_reserve},
    {"retry", Op::retry},
    {"pool_retain", Op::create_pool},
    {"pool_release", Op::release_pool},
    {"memory_fraction", Op::memory_fraction},
};

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::missing:
      return "missing";
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "a truth value";
    case Kind::integer:
    case Kind::wide:
    case Kind::huge:
      return "a number out of range";
    case Kind::real:
      return "a real number";
    case Kind::bytes:
      return "bytes";
    case Kind::text:
      return "a text";
    case Kind::tuple:
      return "a tuple";
    case Kind::list:
      return "a list";
    case Kind::dict:
      return "a dictionary";
  }
  return "";
}

// Where in the snapshot a value is, for errors.
struct Place {
  const char* what;
  std::size_t number;
  std::int64_t device;
};

template <class... Parts>
[[noreturn]] void refuse(const Place& at, const Parts&... parts) {
  std::ostringstream text;
  text << "not a snapshot: " << at.what << " " << at.number;
  if (at.device >= 0) text << " of device " << at.device;
  text << ": ";
  (text << ... << parts);
  throw InvalidArgument(text.str());
}

class Fields {
 public:
  explicit Fields(const PickleValues& values) : values_(values) {}

  PickleValue get(const Place& at, PickleValue dict, Key key) const {
    if (dict.kind() != Kind::dict) refuse(at, name_of(dict.kind()), "; expected a dictionary");
    return values_.field(dict, key);
  }
  PickleItems items(const Place& at, PickleValue value, Key key) const {
    if (value.kind() != Kind::list && value.kind() != Kind::tuple) {
      wrong(at, value, key, "a list");
    }
    return values_.items(value);
  }
  std::uint64_t number(const Place& at, PickleValue value, Key key) const {
    if (is_small(value) && value.number() >= 0) return static_cast<std::uint64_t>(value.number());
    if (value.kind() == Kind::wide) return values_.wide(value);
    wrong(at, value, key, "a number from 0 to 2^64 - 1");
  }
  RecordedNumber any_number(const Place& at, PickleValue value, Key key) const {
    if (is_small(value)) {
      return {value.number() < 0, static_cast<std::uint64_t>(value.number())};
    }
    return {false, number(at, value, key)};
  }
  std::string_view text(const Place& at, PickleValue value, Key key) const {
    if (value.kind() != Kind::text) wrong(at, value, key, "a text");
    return values_.text(value);
  }

 private:
  static bool is_small(PickleValue value) { return value.kind() == Kind::integer; }
  [[noreturn]] void wrong(const Place& at, PickleValue value, Key key, const char* expected) const {
    if (value.kind() == Kind::integer) {
      refuse(at, "'", kKeys[key], "' is ", value.number(), "; expected ", expected);
    }
    refuse(at, "'", kKeys[key], "' is ", name_of(value.kind()), "; expected ", expected);
  }

  const PickleValues& values_;
};

constexpr std::uint64_t kLatest = ~std::uint64_t{0} / 1000;  // us whose ns are a number still

class TableMaker {
 public:
  TableMaker(const PickleValues& values, std::int64_t device, std::uint64_t most_rows)
      : values_(values), fields_(values), device_(device), rows_left_(most_rows) {
    stream({});
    pool({}, {});
    out_.stacks.emplace_back();
    stack_by_frames_.emplace(std::vector<std::uint32_t>{}, 0);
  }

  void add_entries(PickleItems entries) {
    auto& to = out_.entries;
    const std::size_t count = std::min<std::size_t>(entries.size(), rows_left_);
    to.op.reserve(count);
    for (auto* column : {&to.address, &to.bytes, &to.time_us}) column->reserve(count);
    for (auto* column : {&to.stream, &to.pool, &to.stack}) column->reserve(count);
    for (std::size_t i = 0; i < entries.size(); ++i) add_entry({"entry", i, device_}, entries[i]);
  }

  void add_segments(PickleItems segments) {
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const Place at{"segment", i, -1};
      const PickleValue device = fields_.get(at, segments[i], kDevice);
      const bool is_ours =
          device.kind() == Kind::missing
              ? device_ == 0
              : static_cast<std::int64_t>(fields_.number(at, device, kDevice)) == device_;
      if (is_ours) add_segment(at, segments[i]);
    }
  }

  SnapshotTables take() { return std::move(out_); }

 private:
  std::uint64_t number(const Place& at, PickleValue dict, Key key) const {
    return fields_.number(at, fields_.get(at, dict, key), key);
  }

  static void require_room(const Place& at, std::uint64_t address, std::uint64_t bytes) {
    if (bytes <= ~std::uint64_t{0} - address) return;
    refuse(at, bytes, " bytes at ", address, " wrap around the end of all addresses");
  }

  void count_row(const Place& at) {
    if (rows_left_-- == 0) refuse(at, "there are more entries and blocks than bytes in the file");
  }

  void add_entry(const Place& at, PickleValue entry) {
    count_row(at);
    const PickleValue action = fields_.get(at, entry, kAction);
    const std::string_view name = fields_.text(at, action, kAction);
    const auto* known = std::ranges::find(kActions, name, &ActionName::name);
    if (known == std::end(kActions)) {
      refuse(at, "action '", name.substr(0, 40),
             "' is unknown; expected one of torch's trace entries");
    }
    const PickleValue time = fields_.get(at, entry, kTimeUs);
    auto& to = out_.entries;
    to.op.push_back(static_cast<std::uint8_t>(known->op));
    to.time_us.push_back(time.kind() == Kind::missing ? 0 : fields_.number(at, time, kTimeUs));
    if (to.time_us.back() > kLatest) refuse(at, "'time_us' is ", to.time_us.back(), "; no time");
    if (known->op == Op::mark) {
      for (auto* column : {&to.address, &to.bytes}) column->push_back(0);
      for (auto* column : {&to.stream, &to.pool, &to.stack}) column->push_back(0);
      return;
    }
    PickleValue address = fields_.get(at, entry, kDeviceFree);
    if (address.kind() == Kind::missing) address = fields_.get(at, entry, kAddr);
    const bool has_address = address.kind() != Kind::missing;
    to.address.push_back(has_address ? fields_.number(at, address, kAddr) : 0);
    to.bytes.push_back(number(at, entry, kSize));
    if (known->op != Op::oom) require_room(at, to.address.back(), to.bytes.back());
    to.stream.push_back(stream_of(at, entry));
    to.pool.push_back(pool_of(at, entry, kPoolId));
    to.stack.push_back(stack_of(at, entry));
  }

  void add_segment(const Place& at, PickleValue segment) {
    count_row(at);
    const std::uint64_t total = number(at, segment, kTotalSize);
    const std::uint64_t begin = number(at, segment, kAddress);
    std::uint64_t next = begin;
    require_room(at, begin, total);
    const std::uint32_t stream = stream_of(at, segment);
    const std::uint32_t pool = pool_of(at, segment, kSegmentPoolId);
    const PickleValue type = fields_.get(at, segment, kSegmentType);
    const PickleValue expandable = fields_.get(at, segment, kIsExpandable);
    auto& segments = out_.segments;
    segments.address.push_back(begin);
    segments.bytes.push_back(total);
    segments.stream.push_back(stream);
    segments.pool.push_back(pool);
    segments.is_large.push_back(type.kind() == Kind::text
                                    ? fields_.text(at, type, kSegmentType) == "large"
                                    : total > 2 * kMiB);
    segments.is_expandable.push_back(expandable.kind() == Kind::boolean && expandable.number());
    for (const PickleValue block : fields_.items(at, fields_.get(at, segment, kBlocks), kBlocks)) {
      count_row(at);
      const std::uint64_t size = number(at, block, kSize);
      const PickleValue given = fields_.get(at, block, kAddress);
      const std::uint64_t address =
          given.kind() == Kind::missing ? next : fields_.number(at, given, kAddress);
      require_room(at, address, size);
      next = address + size;
      const std::string_view state = fields_.text(at, fields_.get(at, block, kState), kState);
      const bool is_pending = state == "active_pending_free" || state == "active_awaiting_free";
      if (state == "inactive") {
        if (address < begin || next > begin + total) {
          refuse(at, "the free block at ", address, " of ", size,
                 " bytes is not within its segment");
        }
        continue;
      }
      if (!is_pending && state != "active_allocated") {
        refuse(at, "a block is '", state.substr(0, 40), "'; expected one of torch's states");
      }
      const PickleValue requested = fields_.get(at, block, kRequestedSize);
      auto& to = out_.blocks;
      to.address.push_back(address);
      to.bytes.push_back(
          requested.kind() == Kind::missing ? size : fields_.number(at, requested, kRequestedSize));
      to.block_bytes.push_back(size);
      to.stream.push_back(stream);
      to.pool.push_back(pool);
      to.stack.push_back(stack_of(at, block));
      to.is_pending.push_back(is_pending ? 1 : 0);
    }
  }

  // --- Small numbers for large ones.

  std::uint32_t stream(RecordedNumber raw) {
    const auto [it, is_new] =
        streams_.try_emplace(raw, static_cast<std::uint32_t>(out_.streams.size()));
    if (is_new) out_.streams.push_back(raw);
    return it->second;
  }
  std::uint32_t stream_of(const Place& at, PickleValue dict) {
    return stream(fields_.any_number(at, fields_.get(at, dict, kStream), kStream));
  }

  std::uint32_t pool(RecordedNumber first, RecordedNumber second) {
    const std::pair key(first, second);
    const auto [it, is_new] =
        pools_.try_emplace(key, static_cast<std::uint32_t>(out_.pools.size()));
    if (is_new) out_.pools.push_back(key);
    return it->second;
  }
  std::uint32_t pool_of(const Place& at, PickleValue dict, Key key) {
    const PickleValue id = fields_.get(at, dict, key);
    if (id.kind() == Kind::missing) return 0;
    const PickleItems parts = fields_.items(at, id, key);
    if (parts.size() != 2) refuse(at, "'", kKeys[key], "' has ", parts.size(), " parts, not two");
    return pool(fields_.any_number(at, parts[0], key), fields_.any_number(at, parts[1], key));
  }

  std::uint32_t stack_of(const Place& at, PickleValue dict) {
    const PickleValue value = fields_.get(at, dict, kFrames);
    if (value.kind() == Kind::missing || value.kind() == Kind::none) return 0;
    const PickleItems items = fields_.items(at, value, kFrames);
    if (items.empty()) return 0;
    // Equal short lists share their items, and no items change any more.
    const auto known = stack_by_items_.find(items.data());
    if (known != stack_by_items_.end()) return known->second;
    std::vector<std::uint32_t> frames;
    for (const PickleValue frame : items) frames.push_back(frame_of(at, frame));
    const auto [it, is_new] =
        stack_by_frames_.try_emplace(frames, static_cast<std::uint32_t>(out_.stacks.size()));
    if (is_new) out_.stacks.push_back(std::move(frames));
    stack_by_items_.emplace(items.data(), it->second);
    return it->second;
  }

  std::uint32_t frame_of(const Place& at, PickleValue frame) {
    const PickleValue file = fields_.get(at, frame, kFilename);
    const auto known = frame_by_contents_.find(values_.contents(frame));
    if (known != frame_by_contents_.end()) return known->second;
    const PickleValue function = fields_.get(at, frame, kName);
    const PickleValue line = fields_.get(at, frame, kLine);
    const std::string_view file_text = fields_.text(at, file, kFilename);
    const std::string_view function_text = fields_.text(at, function, kName);
    const auto line_number = static_cast<std::int64_t>(fields_.any_number(at, line, kLine).bits);
    const std::array<std::int64_t, 3> key{file.number(), function.number(), line_number};
    const auto [it, is_new] =
        frames_.try_emplace(key, static_cast<std::uint32_t>(out_.frames.size()));
    if (is_new) {
      out_.frames.push_back({std::string(file_text), std::string(function_text), line_number});
    }
    frame_by_contents_.emplace(values_.contents(frame), it->second);
    return it->second;
  }

  const PickleValues& values_;
  Fields fields_;
  const std::int64_t device_;
  std::uint64_t rows_left_;
  SnapshotTables out_;
  std::map<RecordedNumber, std::uint32_t> streams_;
  std::map<std::pair<RecordedNumber, RecordedNumber>, std::uint32_t> pools_;
  std::unordered_map<const PickleValue*, std::uint32_t> stack_by_items_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> stack_by_frames_;
  std::unordered_map<const void*, std::uint32_t> frame_by_contents_;
  std::map<std::array<std::int64_t, 3>, std::uint32_t> frames_;
};

}  // namespace

SnapshotReader::SnapshotReader(ByteSource source) : file_bytes_(source.size()), values_(kKeys) {
  const PickleValue root = read_pickle(source, values_);
  constexpr const char* kExpected =
      "not a snapshot: expected a dictionary with 'segments' and 'device_traces'";
  if (root.kind() != Kind::dict) throw InvalidArgument(kExpected);
  const auto list_of = [&](Key key) -> PickleItems {
    const PickleValue value = values_.field(root, key);
    if (value.kind() == Kind::list) return values_.items(value);
    if (key == kDeviceTraces && (value.kind() == Kind::missing || value.kind() == Kind::none)) {
      return {};
    }
    throw InvalidArgument(kExpected);
  };
  segments_ = list_of(kSegments);
  const PickleValue settings = values_.field(root, kAllocatorSettings);
  for (const Key key : {kCudaAllocConf, kAllocConf}) {
    if (settings.kind() != Kind::dict) break;
    const PickleValue text = values_.field(settings, key);
    if (text.kind() == Kind::text) {
      settings_ = values_.text(text);
    } else if (text.kind() != Kind::missing && text.kind() != Kind::none) {
      throw InvalidArgument("not a snapshot: '" + std::string(kKeys[key]) + "' is " +
                            name_of(text.kind()) + "; expected a text");
    }
  }
  histories_ = list_of(kDeviceTraces);
  has_whole_history_ = values_.field(root, kWholeHistory).kind() != Kind::missing;

  const Fields fields(values_);
  std::set<std::int64_t> found;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const Place at{"segment", i, -1};
    const PickleValue device = fields.get(at, segments_[i], kDevice);
    found.insert(device.kind() == Kind::missing
                     ? 0
                     : static_cast<std::int64_t>(fields.number(at, device, kDevice)));
  }
  std::uint64_t looked_at = 0;
  // What is done to all devices says nothing about which were used.
  for (std::size_t i = 0; i < histories_.size(); ++i) {
    const auto device = static_cast<std::int64_t>(i);
    const Place history{"the history", i, device};
    const PickleItems entries = fields.items(history, histories_[i], kDeviceTraces);
    for (std::size_t k = 0; k < entries.size(); ++k) {
      const Place at{"entry", k, device};
      const std::string_view action = fields.text(at, fields.get(at, entries[k], kAction), kAction);
      if (action == "snapshot" || action == "empty_cache" || action == "memory_fraction") {
        if (++looked_at > file_bytes_) refuse(at, "there are more entries than bytes in the file");
        continue;
      }
      found.insert(device);
      used_devices_.push_back(device);
      break;
    }
  }
  devices_.assign(found.begin(), found.end());
}

SnapshotTables SnapshotReader::tables(std::int64_t device) const {
  TableMaker maker(values_, device, file_bytes_);
  if (device >= 0 && static_cast<std::size_t>(device) < histories_.size()) {
    const Place at{"the history", static_cast<std::size_t>(device), device};
    maker.add_entries(
        Fields(values_).items(at, histories_[static_cast<std::size_t>(device)], kDeviceTraces));
  }
  maker.add_segments(segments_);
  return maker.take();
}

}  // namespace npusim::lab
