// SPDX-License-Identifier: BSD-3-Clause
// Frames are kept as code object and offset; lines are looked up when somebody asks. Equal sites
// have one number, so their memory is bounded by the program's lines and not by its steps.
#include "csrc/python/sites.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/utils/pythoncapi_compat.h>  // Py_IsFinalizing() before Python 3.13

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include "backend/observer.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

using npusim::Site;

constexpr std::size_t kMostFrames = 64;  // the innermost ones
constexpr std::size_t kMostSites = 1 << 18;
constexpr std::size_t kForwards = 1 << 16;  // nodes whose forward is remembered; a power of two

struct Frame {
  PyCodeObject* code;  // a reference that is never given back
  int offset;
  bool operator==(const Frame&) const = default;
};

struct Entry {
  std::vector<Frame> frames;
  const std::string* node = nullptr;  // of the autograd graph
  Site forward = 0;
};

struct Forward {
  std::uint64_t thread = 0;
  std::uint64_t sequence = 0;
  Site site = 0;
};

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}

class Sites {
 public:
  Site find(const Frame* frames, std::size_t count, const std::string* node, Site forward) {
    std::uint64_t hash = mixed(reinterpret_cast<std::uintptr_t>(node), forward);
    for (std::size_t i = 0; i < count; ++i) {
      hash = mixed(hash, reinterpret_cast<std::uintptr_t>(frames[i].code));
      hash = mixed(hash, static_cast<std::uint64_t>(frames[i].offset));
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [first, last] = ids_.equal_range(hash);
    for (auto known = first; known != last; ++known) {
      const Entry& entry = entries_[known->second - 1];
      if (entry.node == node && entry.forward == forward && entry.frames.size() == count &&
          std::equal(frames, frames + count, entry.frames.begin())) {
        return known->second;
      }
    }
    if (entries_.size() == kMostSites) return 0;
    for (std::size_t i = 0; i < count; ++i) Py_INCREF(frames[i].code);
    entries_.push_back({{frames, frames + count}, node, forward});
    ids_.emplace(hash, entries_.size());
    return entries_.size();
  }

  Entry at(Site site) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return site == 0 || site > entries_.size() ? Entry{} : entries_[site - 1];
  }

  const std::string* name_of(const torch::autograd::Node& node, bool may_wait) {
    const std::type_index type(typeid(node));
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto known = names_.find(type);
      if (known != names_.end()) return &known->second;
    }
    if (!may_wait) return nullptr;
    std::string name = node.name();  // without the lock: a node of Python's asks Python
    const std::lock_guard<std::mutex> lock(mutex_);
    return &names_.emplace(type, std::move(name)).first->second;
  }

  void set_forward(std::uint64_t thread, std::uint64_t sequence, Site site) {
    const std::lock_guard<std::mutex> lock(mutex_);
    slot(thread, sequence) = {thread, sequence, site};
  }
  // A view makes a node but no command: then it is the next command's place, mostly the same line.
  Site forward_of(std::uint64_t thread, std::uint64_t sequence) {
    constexpr std::uint64_t kReach = 8;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::uint64_t next = sequence; next < sequence + kReach; ++next) {
      const Forward& known = slot(thread, next);
      if (known.thread == thread && known.sequence == next) return known.site;
    }
    return 0;
  }

 private:
  Forward& slot(std::uint64_t thread, std::uint64_t sequence) {
    return forwards_[(sequence + thread * 8191) % kForwards];
  }

  std::mutex mutex_;  // guards the rest; never held while Python runs
  std::vector<Entry> entries_;
  std::unordered_multimap<std::uint64_t, Site> ids_;
  std::unordered_map<std::type_index, std::string> names_;
  std::vector<Forward> forwards_ = std::vector<Forward>(kForwards);
};

Sites& sites() {
  static auto* table = new Sites;  // never destroyed: commands may run at exit
  return *table;
}

// The Python frames of this thread, innermost first.
std::size_t walk(std::array<Frame, kMostFrames>& frames, bool may_wait) {
  // A thread that has never been in Python has no frames, and is not given a state.
  if (Py_IsInitialized() == 0 || Py_IsFinalizing() != 0) return 0;
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr || (!may_wait && PyGILState_Check() == 0)) return 0;
  const py::gil_scoped_acquire gil;
  std::size_t count = 0;
  PyFrameObject* frame = PyThreadState_GetFrame(state);
  while (frame != nullptr) {
    if (count < kMostFrames) {
      PyCodeObject* code = PyFrame_GetCode(frame);
      frames[count++] = {code, PyFrame_GetLasti(frame)};
      Py_DECREF(code);  // the frame has it, and the frame is running
    }
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  return count;
}

void set_forward_site(Site site) {
  thread_local std::uint64_t last = 0;
  const std::uint64_t next = at::sequence_number::peek();
  if (next == 0 || next == last) return;
  last = next;
  sites().set_forward(at::RecordFunction::currentThreadId(), next - 1, site);
}

py::list frame_list(const Entry& entry) {
  py::list out;
  for (const Frame& frame : entry.frames) {
    const auto* code = reinterpret_cast<PyObject*>(frame.code);
    const py::handle handle(const_cast<PyObject*>(code));
    out.append(py::make_tuple(handle.attr("co_filename"),
                              PyCode_Addr2Line(frame.code, frame.offset),
                              handle.attr("co_qualname")));
  }
  return out;
}

}  // namespace

Site gather_site(bool may_wait) noexcept {
  try {
    std::array<Frame, kMostFrames> frames;
    const std::size_t count = walk(frames, may_wait);
    const auto node = torch::autograd::get_current_node();
    if (node == nullptr) {
      const Site site = sites().find(frames.data(), count, nullptr, 0);
      set_forward_site(site);
      return site;
    }
    const Site forward = sites().forward_of(node->thread_id(), node->sequence_nr());
    return sites().find(frames.data(), count, sites().name_of(*node, may_wait), forward);
  } catch (const std::exception&) {
    return 0;
  }
}

py::dict site_dict(Site site) {
  const Entry entry = sites().at(site);
  py::dict out;
  out["frames"] = frame_list(entry);
  out["node"] = entry.node == nullptr ? py::none() : py::object(py::str(*entry.node));
  out["forward"] = frame_list(sites().at(entry.forward));
  return out;
}

void want_sites(SiteUser user, bool wanted) noexcept {
  static std::atomic<unsigned> users{0};
  const auto bit = static_cast<unsigned>(user);
  const unsigned now = wanted ? users.fetch_or(bit) | bit : users.fetch_and(~bit) & ~bit;
  npusim::set_site_gatherer(now != 0 ? &gather_site : nullptr);
}

}  // namespace torch_npusim
