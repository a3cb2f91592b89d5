// SPDX-License-Identifier: BSD-3-Clause
// Graph: operators, and kernels without one, that were captured once and are replayed with the same
// arguments, into the same addresses, for the price of one launch.
//
//   capture   operators run, because the shapes of results must be known, but take no virtual time.
//             Bytes outside of the graph's pool are saved before their first write and restored at
//             the end; generators too
//   replay    the same operators run again; their allocations get the blocks of the capture
//
// Invariant: a capture that has ended, well or not, has changed no byte, clock or generator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Storage.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "backend/backend.h"
#include "backend/observer.h"
#include "csrc/runtime/cublas_workspaces.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/graph_draws.h"
#include "csrc/runtime/memory_pools.h"

namespace torch_npusim {

class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // capture_begin() captures on the current stream, which must not be a default one. Without a pool
  // the graph makes one of its own. Raises if a capture lasts already; nothing has changed then.
  void capture_begin(std::shared_ptr<PrivatePool> pool, npusim::CaptureMode mode);

  // register_generator() lets operators of later captures draw from it. The default generator of
  // the device that is captured is registered anyway.
  void register_generator(const at::Generator& generator);

  // keep_draw() is called by an operator on `device`. Raises if the operator is captured and the
  // generator is not registered.
  void keep_draw(PhiloxGenerator& generator, c10::DeviceIndex device);

  // capture_end() raises if the capture is not valid; the graph is empty then.
  void capture_end();

  // replay() runs all nodes; those of the stream of the capture run on the current one.
  void replay();

  void reset();

  // call() runs an operator, and captures it if it is for a stream that is being captured.
  void call(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

  // A kernel that no operator launches, and the memory that it writes. `submit` runs once per
  // replay and outlives its caller; it keeps no tensor alive.
  struct Kernel {
    struct Range {
      npusim::Address first;
      std::size_t bytes;
    };
    const char* name = nullptr;  // lives as long as the process
    std::function<void(npusim::Stream& stream)> submit;
    std::vector<Range> writes;
  };
  // call() runs and captures a kernel for `stream`, which is being captured.
  void call(npusim::Stream& stream, Kernel kernel);

  bool is_captured() const noexcept { return captured_; }
  npusim::alloc::PoolId pool() const;
  std::size_t size() const noexcept { return nodes_.size(); }
  std::string as_dot() const;

  // freed_inputs() names the operators' inputs of which nobody but this graph has the memory any
  // more, and which a graph of CUDA would read nevertheless; empty: none.
  std::string freed_inputs() const;

  // capturing() is the graph that is being captured in this process, or nullptr.
  static Graph* capturing() noexcept;
  // Whether commands of `stream` are captured now.
  static bool captures(const npusim::Stream& stream);
  static bool captures_current_stream();

  // The switch, called when a capture begins and before it ends, sends operators to call().
  using Switch = std::function<void(Graph& graph, bool on)>;
  static void set_switch(Switch turn);

 private:
  friend class CaptureObserver;
  enum class Kind : std::uint8_t { op, kernel, record, block };
  struct Node {
    Kind kind = Kind::op;
    npusim::Stream* stream = nullptr;
    std::optional<c10::OperatorHandle> op;
    std::vector<c10::IValue> arguments;
    GraphBlocks::List blocks;
    std::vector<Draw> draws;
    Kernel kernel;
    std::size_t mark = 0;  // of record and block
  };
  struct PreImage {
    c10::Storage storage;  // of an operator; none: `first` tells where it was
    npusim::Address first = 0;
    std::vector<char> bytes;
  };
  struct Saved {
    Draw drawn;
    PhiloxState before;
  };
  void may_draw(const at::Generator& generator);

  void hear(const npusim::OrderRecord& record);
  c10::IValue frozen(const c10::IValue& value) const;
  at::Tensor frozen(const at::Tensor& tensor) const;
  bool is_ours(npusim::Address address) const;
  void keep_before_write(const c10::IValue& value);
  void keep_before_write(const Kernel::Range& range);
  void put_back();
  void clear_nodes() noexcept;
  std::string unjoined() const;

  std::shared_ptr<PrivatePool> pool_;
  c10::DeviceIndex device_ = 0;
  npusim::Stream* origin_ = nullptr;
  bool captured_ = false;
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<npusim::Event>> marks_;
  std::vector<at::Generator> registered_;
  std::vector<std::unique_ptr<LibraryMemory>> numbers_;  // of the generators of this capture

  // While it is being captured; mutex_ guards what events and operators change.
  mutable std::mutex mutex_;
  std::unordered_set<const npusim::Stream*> streams_;
  // The latest mark of an event's version: an event that is gone leaves its address to another.
  std::map<std::pair<const npusim::Event*, std::uint64_t>, std::size_t> known_marks_;
  std::size_t marked_ = 0;  // records so far, each of which becomes one of marks_
  std::map<npusim::Address, npusim::Address> ours_;      // begin -> end of what was allocated
  std::vector<PreImage> before_;                         // in the order of the first writes
  std::unordered_set<const c10::StorageImpl*> is_kept_;  // whole, in before_
  std::vector<Saved> generators_;                        // those that this capture may draw from
};

}  // namespace torch_npusim
