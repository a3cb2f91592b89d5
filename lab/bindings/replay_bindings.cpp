// SPDX-License-Identifier: BSD-3-Clause
// replay(): options in, arrays out, the GIL released between. Policies written in Python.
#include <algorithm>
#include <optional>

#include "allocator/error.h"
#include "lab/bindings/bindings.h"
#include "lab/bindings/python_policy.h"
#include "lab/engine/bank_conflicts.h"
#include "lab/engine/policies.h"
#include "lab/engine/replay.h"

namespace py = pybind11;

namespace npusim::lab {
namespace {

constexpr std::string_view kPresets[] = {"npusim",   "cuda-2.13", "cuda-2.12", "cuda-2.11",
                                         "cuda-2.9", "cuda-2.4",  "ascend"};

bool is_preset(std::string_view name) {
  return std::find(std::begin(kPresets), std::end(kPresets), name) != std::end(kPresets);
}

// Objects whose attributes are set below; _lab.pyi lists them.
struct MemoryPicture {};
struct Replay {};

// --- Results
// ----------------------------------------------------------------------------------------

template <class T, class Rows, class Get>
py::array column(const Rows& rows, const Get& get) {
  std::vector<T> values;
  values.reserve(rows.size());
  for (const auto& row : rows) values.push_back(static_cast<T>(get(row)));
  return as_array(std::move(values));
}

template <class Rows, class Get>
py::array flags(const Rows& rows, const Get& get) {
  std::vector<std::uint8_t> values;
  values.reserve(rows.size());
  for (const auto& row : rows) values.push_back(get(row) ? 1 : 0);
  return as_array<bool>(std::move(values));
}

struct PictureBlock {
  std::int64_t segment;
  const BlockInfo* block;
};

int state_code(BlockState state) {
  return state == BlockState::allocated ? 1 : state == BlockState::pending ? 2 : 0;
}

py::object picture_object(const Picture& picture) {
  py::object out = py::cast(MemoryPicture());
  const std::vector<SegmentInfo>& segments = picture.segments;
  std::vector<PictureBlock> blocks;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    for (const BlockInfo& block : segments[i].blocks) {
      blocks.push_back({static_cast<std::int64_t>(i), &block});
    }
  }
  using S = SegmentInfo;
  using B = PictureBlock;
  out.attr("event") = picture.event;
  out.attr("segment_address") =
      column<std::uint64_t>(segments, [](const S& s) { return s.address; });
  out.attr("segment_bytes") =
      column<std::uint64_t>(segments, [](const S& s) { return s.total_bytes; });
  out.attr("segment_stream") = column<std::uint32_t>(segments, [](const S& s) { return s.stream; });
  out.attr("segment_pool") =
      column<std::uint32_t>(segments, [](const S& s) { return s.pool.second; });
  out.attr("segment_order") =
      column<std::int64_t>(segments, [](const S& s) { return s.registration; });
  out.attr("segment_is_large") = flags(segments, [](const S& s) { return s.is_large; });
  out.attr("segment_is_expandable") = flags(segments, [](const S& s) { return s.is_expandable; });
  out.attr("block_segment") = column<std::int64_t>(blocks, [](const B& b) { return b.segment; });
  out.attr("block_address") =
      column<std::uint64_t>(blocks, [](const B& b) { return b.block->address; });
  out.attr("block_bytes") =
      column<std::uint64_t>(blocks, [](const B& b) { return b.block->bytes; });
  out.attr("block_requested") =
      column<std::uint64_t>(blocks, [](const B& b) { return b.block->requested_bytes; });
  out.attr("block_state") =
      column<std::uint8_t>(blocks, [](const B& b) { return state_code(b.block->state); });
  out.attr("block_malloc") = column<std::int64_t>(
      blocks, [](const B& b) { return static_cast<std::int64_t>(b.block->context) - 1; });
  out.attr("block_order") = column<std::int64_t>(blocks, [](const B& b) { return b.block->order; });
  return out;
}

py::dict oom_dict(const OomRecord& oom) {
  const OutOfMemoryReport& report = oom.report;
  py::dict out;
  out["event"] = oom.event;
  out["malloc"] = oom.number;
  out["text"] = format_out_of_memory(report, "Simulated device", 0);
  out["requested_bytes"] = report.requested_bytes;
  out["segment_bytes"] = report.segment_bytes;
  out["total_bytes"] = report.total_bytes;
  out["free_bytes"] = report.free_bytes;
  out["allowed_bytes"] = report.allowed_bytes;
  out["allocated_bytes"] = report.allocated_bytes;
  out["reserved_bytes"] = report.reserved_bytes;
  out["cached_bytes"] = report.cached_bytes;
  out["largest_free_bytes"] = report.largest_free_bytes;
  out["pending_bytes"] = report.pending_bytes;
  out["private_cached_bytes"] = report.private_cached_bytes;
  return out;
}

py::object replay_object(ReplayResult&& r, const std::string& policy) {
  py::object out = py::cast(Replay());
  out.attr("policy") = policy;
  out.attr("seconds") = r.seconds;
  out.attr("failed") = as_array<bool>(std::move(r.failed));
  out.attr("address") = as_array(std::move(r.address));
  out.attr("segment") = as_array(std::move(r.segment));
  out.attr("offset") = as_array(std::move(r.offset));
  out.attr("block_bytes") = as_array(std::move(r.block_bytes));
  out.attr("curve_every") = r.curve_every;
  out.attr("reserved") = as_array(std::move(r.highest.reserved));
  out.attr("reserved_low") = as_array(std::move(r.lowest.reserved));
  out.attr("active") = as_array(std::move(r.highest.active));
  out.attr("active_low") = as_array(std::move(r.lowest.active));
  out.attr("allocated") = as_array(std::move(r.highest.allocated));
  out.attr("allocated_low") = as_array(std::move(r.lowest.allocated));
  out.attr("requested") = as_array(std::move(r.highest.requested));
  out.attr("requested_low") = as_array(std::move(r.lowest.requested));
  out.attr("largest_free") = as_array(std::move(r.largest_free));
  out.attr("free_bytes") = as_array(std::move(r.free_bytes));
  out.attr("peak_reserved") = r.peak_reserved.bytes;
  out.attr("peak_reserved_event") = r.peak_reserved.event;
  out.attr("peak_active") = r.peak_active.bytes;
  out.attr("peak_active_event") = r.peak_active.event;
  out.attr("peak_allocated") = r.peak_allocated.bytes;
  out.attr("peak_requested") = r.peak_requested.bytes;
  out.attr("active_at_peak_reserved") = r.active_at_peak_reserved;
  out.attr("reserved_byte_events") = r.reserved_byte_events;
  out.attr("reserved_byte_ns") = r.reserved_byte_ns;
  out.attr("stitched_bytes") = r.stitched_bytes;
  out.attr("unstitched_bytes") = r.unstitched_bytes;
  out.attr("retries") = r.retries;
  out.attr("latency_ns") = as_array(std::move(r.latency_ns));
  out.attr("waits") = as_array(std::move(r.waits));
  const std::vector<DeviceCall>& calls = r.device_calls;
  using C = DeviceCall;
  out.attr("device_event") = column<std::int64_t>(calls, [](const C& c) { return c.event; });
  out.attr("device_op") = column<std::uint8_t>(calls, [](const C& c) { return c.op; });
  out.attr("device_address") = column<std::uint64_t>(calls, [](const C& c) { return c.address; });
  out.attr("device_bytes") = column<std::uint64_t>(calls, [](const C& c) { return c.bytes; });
  out.attr("device_stream") = column<std::uint32_t>(calls, [](const C& c) { return c.stream; });
  out.attr("device_pool") = column<std::uint32_t>(calls, [](const C& c) { return c.pool; });
  py::list ooms, pictures;
  for (const OomRecord& oom : r.ooms) ooms.append(oom_dict(oom));
  for (const Picture& picture : r.pictures) pictures.append(picture_object(picture));
  out.attr("ooms") = ooms;
  out.attr("stopped_at") = r.stopped_at;
  out.attr("stats") = r.has_stats ? fields_dict(r.stats) : py::dict();
  out.attr("metrics") = r.metrics;
  out.attr("pictures") = pictures;
  out.attr("violations") = r.violations.first;
  out.attr("violation_count") = r.violations.count;
  return out;
}

BlockState state_of(std::uint8_t code) {
  constexpr BlockState kStates[] = {BlockState::free, BlockState::allocated, BlockState::pending,
                                    BlockState::unmapped};
  return kStates[std::min<std::size_t>(code, 3)];
}

// A column of a picture that the caller gives.
template <class T>
std::vector<T> picture_column(const py::object& picture, const char* name, std::size_t length) {
  using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;
  const Array array = Array::ensure(picture.attr(name));
  if (!array || array.ndim() != 1 ||
      (length != kUnlimited && array.size() != static_cast<py::ssize_t>(length))) {
    PyErr_Clear();
    throw py::value_error(std::string("initial.") + name + " is no column as long as the others");
  }
  return {array.data(), array.data() + array.size()};
}

std::vector<SegmentInfo> segments_of(const py::object& picture) {
  const auto address = picture_column<std::uint64_t>(picture, "segment_address", kUnlimited);
  const std::size_t count = address.size();
  const auto bytes = picture_column<std::uint64_t>(picture, "segment_bytes", count);
  const auto stream = picture_column<std::uint32_t>(picture, "segment_stream", count);
  const auto pool = picture_column<std::uint32_t>(picture, "segment_pool", count);
  const auto order = picture_column<std::int64_t>(picture, "segment_order", count);
  const auto is_large = picture_column<std::uint8_t>(picture, "segment_is_large", count);
  const auto is_expandable = picture_column<std::uint8_t>(picture, "segment_is_expandable", count);
  std::vector<SegmentInfo> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i].address = address[i];
    out[i].total_bytes = bytes[i];
    out[i].stream = stream[i];
    out[i].pool = {0, pool[i]};
    out[i].registration = order[i];
    out[i].is_large = is_large[i] != 0;
    out[i].is_expandable = is_expandable[i] != 0;
  }
  const auto segment = picture_column<std::int64_t>(picture, "block_segment", kUnlimited);
  const std::size_t blocks = segment.size();
  const auto block_address = picture_column<std::uint64_t>(picture, "block_address", blocks);
  const auto block_bytes = picture_column<std::uint64_t>(picture, "block_bytes", blocks);
  const auto requested = picture_column<std::uint64_t>(picture, "block_requested", blocks);
  const auto state = picture_column<std::uint8_t>(picture, "block_state", blocks);
  const auto number = picture_column<std::int64_t>(picture, "block_malloc", blocks);
  const auto block_order = py::hasattr(picture, "block_order")
                               ? picture_column<std::int64_t>(picture, "block_order", blocks)
                               : std::vector<std::int64_t>(blocks);
  for (std::size_t i = 0; i < blocks; ++i) {
    if (segment[i] < 0 || segment[i] >= std::ssize(out)) {
      throw py::value_error("initial.block_segment has " + std::to_string(segment[i]) +
                            "; expected the index of a segment");
    }
    out[static_cast<std::size_t>(segment[i])].blocks.push_back(
        {block_address[i], block_bytes[i], requested[i], state_of(state[i]),
         static_cast<ContextId>(number[i] + 1), block_order[i]});
  }
  return out;
}

template <class T>
T choose(const char* what, const std::string& word,
         std::initializer_list<std::pair<const char*, T>> options) {
  std::string expected;
  for (const auto& [name, value] : options) {
    if (word == name) return value;
    expected += std::string(expected.empty() ? "'" : ", '") + name + "'";
  }
  throw py::value_error(std::string(what) + " is '" + word + "'; expected one of " + expected);
}

py::object run_replay(const std::shared_ptr<Trace>& trace, const py::object& policy,
                      const std::string& settings, std::uint64_t capacity_bytes,
                      const std::string& pending, const std::string& on_oom, bool placements,
                      std::size_t curve_points, bool fragmentation,
                      std::vector<std::int64_t> snapshots_at, bool picture_at_end,
                      const py::object& segment_addresses, std::optional<bool> validate,
                      std::uint64_t scatter_seed, std::int64_t validate_every,
                      const py::object& initial, bool latency) {
  ReplayOptions options;
  const bool is_named = py::isinstance<py::str>(policy);
  const std::string name = is_named
                               ? policy.cast<std::string>()
                               : py::str(py::type::of(policy).attr("__name__")).cast<std::string>();
  py::array_t<std::uint64_t, py::array::c_style | py::array::forcecast> addresses;
  if (!segment_addresses.is_none()) {
    addresses = decltype(addresses)(segment_addresses);
    options.device.addresses = {addresses.data(), static_cast<std::size_t>(addresses.size())};
  }
  if (capacity_bytes > std::uint64_t{1} << 50) {
    throw py::value_error("capacity_bytes is " + std::to_string(capacity_bytes) +
                          "; expected at most 2**50");
  }
  options.device.capacity_bytes = capacity_bytes;
  options.device.scatter_seed = scatter_seed;
  options.pending = choose<PendingMode>("pending", pending,
                                        {{"recorded", PendingMode::recorded},
                                         {"immediate", PendingMode::immediate},
                                         {"never", PendingMode::never}});
  options.stop_on_oom = choose<bool>("on_oom", on_oom, {{"skip", false}, {"stop", true}});
  options.placements = placements;
  options.curve_points = curve_points;
  options.fragmentation = fragmentation;
  options.latency = latency;
  options.pictures_at = std::move(snapshots_at);
  options.picture_at_end = picture_at_end;
  options.validate_every = validate_every;
  if (!initial.is_none()) {
    if (!is_named || !is_preset(name)) {
      throw py::value_error("initial is for the caching presets; other policies start empty");
    }
    options.initial = segments_of(initial);
  }
  options.validate = validate.value_or(!is_named || !is_preset(name));
  if (!std::is_sorted(options.pictures_at.begin(), options.pictures_at.end())) {
    throw py::value_error("snapshots_at is not ascending; sort it");
  }
  ReplayResult result;
  if (!is_named) {
    result = replay(
        *trace,
        [&](ReplayDevice& device) { return std::make_unique<PythonPolicy>(policy, name, device); },
        options);
  } else {
    const py::gil_scoped_release released;
    if (is_preset(name)) {
      result = replay(*trace, parse_config(preset(name), settings), options);
    } else {
      const auto make = [&](ReplayDevice& device) {
        return make_policy(name, settings, device, *trace);
      };
      result = replay(*trace, make, options);
    }
  }
  return replay_object(std::move(result), name);
}

py::dict policies() {
  py::dict out;
  out["npusim"] = "caching allocator, quantum of 32 bytes, upstream's defects repaired";
  out["cuda-2.13"] = "caching allocator of PyTorch 2.13 for CUDA";
  out["cuda-2.12"] = "caching allocator of PyTorch 2.12 for CUDA: ties go to older blocks";
  out["cuda-2.11"] = "caching allocator of PyTorch 2.11 for CUDA: ties go to lower addresses";
  out["cuda-2.9"] = "as cuda-2.11, but lists of divisions are read as PyTorch 2.5 to 2.9 do";
  out["cuda-2.4"] = "as cuda-2.9, but private pools never expand (PyTorch 2.4)";
  out["ascend"] = "as cuda-2.11 with 32 bytes added to each request";
  for (const PolicyName& policy : built_in_policies()) {
    const char* streams = policy.ignores_streams ? "; ignores streams" : "";
    out[py::str(std::string(policy.name))] = std::string(policy.what) + streams;
  }
  return out;
}

bool ignores_streams(std::string_view name) {
  const std::vector<PolicyName> known = built_in_policies();
  return std::any_of(known.begin(), known.end(), [&](const PolicyName& policy) {
    return policy.name == name && policy.ignores_streams;
  });
}

bool has_arenas(std::string_view name) {
  const std::vector<PolicyName> known = built_in_policies();
  return std::any_of(known.begin(), known.end(), [&](const PolicyName& policy) {
    return policy.name == name && policy.has_arenas;
  });
}

}  // namespace

void bind_replay(py::module_& m) {
  bind_policy_device(m, "PolicyDevice");
  py::class_<MemoryPicture>(m, "MemoryPicture", py::dynamic_attr());
  py::class_<Replay>(m, "Replay", py::dynamic_attr());
  m.def("replay", &run_replay, py::arg("trace"), py::arg("policy") = "npusim",
        py::arg("settings") = "", py::arg("capacity_bytes") = std::uint64_t{1} << 50, py::kw_only(),
        py::arg("pending") = "recorded", py::arg("on_oom") = "skip", py::arg("placements") = true,
        py::arg("curve_points") = 0, py::arg("fragmentation") = false,
        py::arg("snapshots_at") = std::vector<std::int64_t>{}, py::arg("picture_at_end") = false,
        py::arg("segment_addresses") = py::none(), py::arg("validate") = py::none(),
        py::arg("scatter_seed") = 0, py::arg("validate_every") = 0, py::arg("initial") = py::none(),
        py::arg("latency") = false);
  m.def(
      "bank_conflicts",
      [](const Trace& trace,
         const py::array_t<std::uint64_t, py::array::c_style | py::array::forcecast>& address,
         std::uint64_t banks, std::uint64_t stride_bytes, std::uint64_t window) {
        if (banks == 0 || stride_bytes == 0) {
          throw py::value_error("banks or stride_bytes is 0; expected 1 or more");
        }
        const BankConflicts found =
            count_bank_conflicts(trace, {address.data(), static_cast<std::size_t>(address.size())},
                                 {banks, stride_bytes, window});
        return py::make_tuple(found.conflicts, found.pairs);
      },
      py::arg("trace"), py::arg("address"), py::arg("banks") = 32, py::arg("stride_bytes") = 512,
      py::arg("window") = 3);
  m.def("policies", &policies);
  m.def("presets",
        [] { return std::vector<std::string>(std::begin(kPresets), std::end(kPresets)); });
  m.def("ignores_streams", &ignores_streams, py::arg("name"));
  m.def("has_arenas", &has_arenas, py::arg("name"));
  m.def(
      "config",
      [](const std::string& name, const std::string& settings) {
        return fields_dict(parse_config(preset(name), settings));
      },
      py::arg("preset") = "npusim", py::arg("settings") = "");
  m.def(
      "rounded",
      [](const py::array_t<std::uint64_t, py::array::c_style | py::array::forcecast>& bytes,
         const std::string& name, const std::string& settings) {
        const Config config = parse_config(preset(name), settings);
        std::vector<std::uint64_t> out;
        for (const std::uint64_t request : std::span(bytes.data(), bytes.size())) {
          const std::optional<std::size_t> block = round_request(config, request);
          if (!block) throw py::value_error(std::to_string(request) + " bytes: no block has those");
          out.push_back(*block);
        }
        return as_array(std::move(out));
      },
      py::arg("bytes"), py::arg("preset") = "npusim", py::arg("settings") = "");
}

}  // namespace npusim::lab
