// SPDX-License-Identifier: BSD-3-Clause
// Call stacks by id, and the dictionaries of a snapshot.
#include "csrc/python/memory_history.h"

#include <pybind11/stl.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "csrc/errors.h"
#include "csrc/runtime/device_allocator.h"

namespace py = pybind11;

namespace torch {
// Declared here because torch's own header for it wants a JSON library that the wheel leaves out.
__attribute__((visibility("default"))) void installCapturedTracebackPython();
}  // namespace torch

namespace torch_npusim {

namespace {

using npusim::alloc::ContextId;
using Traceback = std::shared_ptr<torch::CapturedTraceback>;

// Stacks that live blocks or history entries refer to. Grows to twice what is in use, then drops
// what nobody refers to any more.
class ContextTable {
 public:
  ContextId add(Traceback traceback) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tracebacks_.emplace(++last_id_, std::move(traceback));
    return last_id_;
  }
  bool wants_pruning() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return tracebacks_.size() >= prune_at_;
  }
  void keep_only(const std::unordered_set<ContextId>& used, ContextId newest) {
    std::vector<Traceback> dropped;  // destroyed without the lock: they own Python objects
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto entry = tracebacks_.begin(); entry != tracebacks_.end();) {
      const bool keep = entry->first > newest || used.count(entry->first) != 0;
      if (!keep) dropped.push_back(std::move(entry->second));
      entry = keep ? std::next(entry) : tracebacks_.erase(entry);
    }
    prune_at_ = std::max(kSmallest, 2 * tracebacks_.size());
  }
  Traceback find(ContextId id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = tracebacks_.find(id);
    return found == tracebacks_.end() ? nullptr : found->second;
  }
  ContextId newest() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return last_id_;
  }

 private:
  static constexpr std::size_t kSmallest = 1 << 16;
  std::mutex mutex_;  // guards the rest; never held while Python runs
  std::unordered_map<ContextId, Traceback> tracebacks_;
  ContextId last_id_ = 0;
  std::size_t prune_at_ = kSmallest;
};

ContextTable& contexts() {
  static auto* table = new ContextTable;  // never destroyed: blocks may be freed at exit
  return *table;
}

std::atomic<bool> g_cpp_stacks{false};
struct {
  npusim::alloc::HistoryMode mode = npusim::alloc::HistoryMode::off;
  std::size_t max_entries = 0;
} g_recorded;                                // as the program asked last
std::atomic<bool> g_stacks_of_traces{true};  // else of live blocks alone

template <class Visit>
void for_each_allocator(const Visit& visit) {
  if (!npusim::initialized()) return;
  for (int i = 0; i < npusim::device_count(); ++i) {
    visit(i, live_allocator(static_cast<c10::DeviceIndex>(i)));
  }
}

void prune_contexts() {
  const ContextId newest = contexts().newest();
  std::unordered_set<ContextId> used;
  for_each_allocator([&](int, npusim::alloc::LiveAllocator& allocator) {
    const npusim::alloc::Snapshot picture = allocator.inspect();
    for (const auto& segment : picture.segments) {
      used.insert(segment.context);
      for (const auto& block : segment.blocks) used.insert(block.context);
    }
    for (const auto& entry : picture.history) used.insert(entry.context);
  });
  contexts().keep_only(used, newest);
}

ContextId gather() {
  if (Py_IsInitialized() == 0) return 0;
  if (contexts().wants_pruning()) prune_contexts();
  return contexts().add(torch::CapturedTraceback::gather(
      /*python=*/true, /*script=*/true, /*cpp=*/g_cpp_stacks.load(std::memory_order_relaxed)));
}

// torch asks its compiler for the lines behind generated code, and imports it to ask: a second or
// more. A process that has not imported it runs no such code, so while this lives, with the GIL
// held, torch asks a name that knows none.
class NoGeneratedCode {
 public:
  NoGeneratedCode() : torch_(py::module_::import("torch").attr("__dict__")) {
    if (torch_.contains(kName)) return;
    const py::object plain = py::module_::import("types").attr("SimpleNamespace");
    const py::cpp_function none([](const py::args&) { return py::none(); });
    const py::object cache = plain(py::arg("stack_frames_for_code") = none);
    torch_[kName] = plain(py::arg("codecache") = plain(py::arg("PyCodeCache") = cache));
    is_set_ = true;
  }
  NoGeneratedCode(const NoGeneratedCode&) = delete;
  NoGeneratedCode& operator=(const NoGeneratedCode&) = delete;
  ~NoGeneratedCode() {
    if (is_set_) PyDict_DelItemString(torch_.ptr(), kName);
  }

 private:
  static constexpr const char* kName = "_inductor";
  py::dict torch_;
  bool is_set_ = false;
};

// Symbolizes all stacks of a snapshot in one pass, as torch does: one stack is slow, many are not.
class Frames {
 public:
  py::list list_for(ContextId id) {
    py::list frames;
    if (Traceback traceback = id == 0 ? nullptr : contexts().find(id)) {
      wanted_.push_back(traceback.get());
      kept_.push_back(std::move(traceback));
      targets_.push_back(frames);
    }
    return frames;
  }
  void fill() {
    if (wanted_.empty()) return;
    const NoGeneratedCode none;
    const torch::SymbolizedTracebacks symbolized = torch::symbolize(wanted_);
    std::vector<py::dict> frames;
    for (const auto& frame : symbolized.all_frames) {
      py::dict row;
      row["name"] = frame.funcname;
      row["filename"] = frame.filename;
      row["line"] = frame.lineno;
      frames.push_back(row);
    }
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      for (const std::uint64_t index : symbolized.tracebacks[i]) targets_[i].append(frames[index]);
    }
  }

 private:
  std::vector<torch::CapturedTraceback*> wanted_;
  std::vector<Traceback> kept_;
  std::vector<py::list> targets_;
};

// Puts the fields of for_each_field() into a dictionary.
struct DictPut {
  py::dict& out;
  template <class Value>
  void operator()(const char* name, const Value& value) const {
    out[name] = value;
  }
  void operator()(const char* name, npusim::alloc::PoolId pool) const {
    out[name] = py::make_tuple(pool.first, pool.second);
  }
};

py::dict segment_dict(const npusim::alloc::SegmentInfo& segment, int device, Frames& frames) {
  py::list blocks;
  for (const npusim::alloc::BlockInfo& block : segment.blocks) {
    py::dict row;
    for_each_field(block, DictPut{row});
    row["frames"] = frames.list_for(block.context);
    blocks.append(row);
  }
  py::dict out;
  for_each_field(segment, device, DictPut{out});
  out["frames"] = frames.list_for(segment.context);
  out["blocks"] = blocks;
  return out;
}

py::dict entry_dict(const npusim::alloc::HistoryEntry& entry, Frames& frames) {
  py::dict out;
  for_each_field(entry, DictPut{out});
  out["frames"] = frames.list_for(g_stacks_of_traces ? entry.context : 0);
  return out;
}

py::dict settings_dict(const npusim::alloc::Snapshot& picture) {
  py::dict out;
  if (picture.policy.empty()) {
    for_each_field(picture.config, DictPut{out});
  } else {
    out["policy"] = picture.policy;
  }
  return out;
}

}  // namespace

py::dict memory_snapshot(npusim::alloc::PoolId pool, Traces traces_wanted) {
  py::list segments;
  py::list traces;
  py::dict settings;
  Frames frames;
  for_each_allocator([&](int device, npusim::alloc::LiveAllocator& allocator) {
    const npusim::alloc::Snapshot picture = allocator.snapshot();
    for (const auto& segment : picture.segments) {
      if (pool.is_default() || segment.pool == pool) {
        segments.append(segment_dict(segment, device, frames));
      }
    }
    py::list trace;
    for (const auto& entry : picture.history) {
      const bool is_wanted =
          is_torchs(entry.action) ? traces_wanted != Traces::none : traces_wanted == Traces::whole;
      if (!is_wanted) continue;
      py::dict row = entry_dict(entry, frames);
      // newest_allocation() at the time of the entry.
      if (traces_wanted == Traces::whole) row["number"] = entry.context;
      trace.append(row);
    }
    traces.append(trace);
    settings = settings_dict(picture);
  });
  frames.fill();
  py::dict out;
  out["segments"] = segments;
  out["device_traces"] = traces;
  out["allocator_settings"] = settings;
  out["external_annotations"] = py::list();
  if (traces_wanted == Traces::whole) out["whole_history"] = true;
  return out;
}

std::uint64_t newest_allocation() { return contexts().newest(); }

py::list live_blocks(std::uint64_t after) {
  py::list out;
  for_each_allocator([&](int device, npusim::alloc::LiveAllocator& allocator) {
    for (const auto& segment : allocator.inspect().segments) {
      for (const npusim::alloc::BlockInfo& block : segment.blocks) {
        const bool alive = block.state == npusim::alloc::BlockState::allocated;
        if (!alive || block.context <= after) continue;
        out.append(py::make_tuple(device, block.address, block.bytes, block.requested_bytes,
                                  block.context));
      }
    }
  });
  return out;
}

py::list allocation_frames(const std::vector<std::uint64_t>& allocations) {
  Frames frames;
  py::list lists;
  for (const std::uint64_t allocation : allocations) lists.append(frames.list_for(allocation));
  frames.fill();
  return lists;
}

void know_python_frames() {
  static const bool installed = (torch::installCapturedTracebackPython(), true);
  (void)installed;
}

void record_memory_history(const std::optional<std::string>& enabled,
                           const std::optional<std::string>& context, const std::string& stacks,
                           std::int64_t max_entries, bool clear) {
  using npusim::alloc::HistoryMode;
  const HistoryMode mode = !enabled.has_value()  ? HistoryMode::off
                           : *enabled == "state" ? HistoryMode::state
                                                 : HistoryMode::all;
  know_python_frames();
  g_cpp_stacks = stacks == "all";
  set_context_gatherer(enabled.has_value() && context.has_value() ? &gather : nullptr,
                       /*of_frees_too=*/context == "all");
  g_stacks_of_traces = context != "state";
  translated([] { npusim::initialize(); });
  g_recorded = {mode, static_cast<std::size_t>(max_entries)};
  for_each_allocator([&](int, npusim::alloc::LiveAllocator& allocator) {
    if (clear) allocator.clear_history();
    allocator.record_history(mode, g_recorded.max_entries);
  });
  if (mode == HistoryMode::off) prune_contexts();
}

void record_as_before() {
  if (g_recorded.mode == npusim::alloc::HistoryMode::off) return;
  for_each_allocator([](int, npusim::alloc::LiveAllocator& allocator) {
    allocator.record_history(g_recorded.mode, g_recorded.max_entries);
  });
}

}  // namespace torch_npusim
