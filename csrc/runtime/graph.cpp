// SPDX-License-Identifier: BSD-3-Clause
// Capture, its restoration, and replay.
//
// The trap: shapes of results may depend on values, so a capture has to run its operators, yet it
// must look as if nothing had run (a CUDA capture runs nothing). So every write is undone:
//   - memory outside of the pool: a PreImage before the first write, restored in put_back()
//   - memory of the pool: zeroed; results have no value before the first replay
//   - generators: their state before the capture
//   - time: commands of Launching::captured cost nothing and observers do not hear of them
// Arguments are frozen: the node needs the metadata of now, and must not keep pool memory
// allocated, because a later operator of the capture may reuse it, as it will at each replay.
#include "csrc/runtime/graph.h"

#include <ATen/ops/clone.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <sstream>
#include <unordered_map>

#include "csrc/errors.h"
#include "csrc/runtime/cublas_workspaces.h"
#include "csrc/runtime/cuda_names.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/generator.h"
#include "csrc/runtime/kernel_scope.h"
#include "csrc/runtime/known_values.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

std::atomic<Graph*> g_capturing{nullptr};

Graph::Switch& the_switch() {
  static auto* turn = new Graph::Switch;
  return *turn;
}

// The device that a value is on; nullopt: the host, or no device at all.
std::optional<c10::DeviceIndex> device_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || !tensor.is_privateuseone()) return std::nullopt;
    return tensor.device().index();
  }
  if (value.isDevice()) {
    if (!value.toDevice().is_privateuseone()) return std::nullopt;
    return checked_device(value.toDevice().index());
  }
  if (!value.isTensorList() && !value.isOptionalTensorList()) return std::nullopt;
  for (const c10::IValue& item : value.toListRef()) {
    if (const auto device = device_of(item)) return device;
  }
  return std::nullopt;
}

// Views compute nothing: the operators that use them have frozen their metadata.
bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

// native_batch_norm and its like change running statistics that their schema calls inputs.
bool is_written(const c10::Argument& argument) {
  if (argument.alias_info() != nullptr) return argument.alias_info()->isWrite();
  return argument.name().rfind("running_", 0) == 0;
}

void* reachable(const c10::Storage& storage) {
  void* data = const_cast<void*>(storage.data());  // NOLINT: it is put back there
  return npusim::is_device_address(data) ? npusim::kernel_alias(data) : data;
}

// This thread's allocations come from the pool while it lives.
class FromPool {
 public:
  FromPool(const PrivatePool& pool, c10::DeviceIndex device) : pool_(pool), device_(device) {
    // An operator of Python's may call others, which are captured as its parts.
    open_ = current_pool(device) != pool.id();
    if (open_) begin_allocating_from(pool, device);
  }
  ~FromPool() {
    if (open_) end_allocating_from(pool_, device_);
  }
  FromPool(const FromPool&) = delete;
  FromPool& operator=(const FromPool&) = delete;

 private:
  const PrivatePool& pool_;
  c10::DeviceIndex device_;
  bool open_;
};

class StreamScope {
 public:
  explicit StreamScope(npusim::Stream& stream)
      : before_(npusim::current_stream(stream.device())), device_(npusim::current_device()) {
    npusim::unchecked_set_device(stream.device());
    npusim::set_current_stream(stream);
  }
  ~StreamScope() {
    npusim::set_current_stream(before_);
    npusim::unchecked_set_device(device_);
  }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  npusim::Stream& before_;
  int device_;
};

}  // namespace

// Hears of events between the streams of a capture.
class CaptureObserver final : public npusim::Observer {
 public:
  void on_order(const npusim::OrderRecord& record) noexcept override {
    if (Graph* graph = Graph::capturing()) graph->hear(record);
  }
};

namespace {
CaptureObserver& capture_observer() {
  static auto* made = new CaptureObserver;  // observers live as long as the process
  return *made;
}
}  // namespace

Graph* Graph::capturing() noexcept { return g_capturing.load(std::memory_order_acquire); }

bool Graph::captures(const npusim::Stream& stream) {
  const Graph* graph = capturing();
  if (graph == nullptr) return false;
  const std::lock_guard<std::mutex> lock(graph->mutex_);
  return graph->streams_.count(&stream) != 0;
}

bool Graph::captures_current_stream() {
  return capturing() != nullptr && captures(npusim::current_stream(npusim::current_device()));
}

void Graph::set_switch(Switch turn) { the_switch() = std::move(turn); }

Graph::~Graph() {
  if (capturing() == this) {  // nobody will end it
    try {
      npusim::invalidate_capture("its graph is gone");
      capture_end();
    } catch (const std::exception&) {
    }
  }
  if (captured_) clear_captured_workspaces(*origin_);
}

npusim::alloc::PoolId Graph::pool() const {
  TORCH_CHECK(pool_ != nullptr,
              "pool() was called on a graph that captures nothing; call capture_begin() before");
  return pool_->id();
}

void Graph::capture_begin(std::shared_ptr<PrivatePool> pool, npusim::CaptureMode mode) {
  TORCH_CHECK(!captured_,
              "This graph holds a capture already; call reset() before capturing into it again");
  const c10::DeviceIndex device = checked_device(static_cast<c10::DeviceIndex>(-1));
  npusim::Stream& stream = npusim::current_stream(device);
  TORCH_CHECK(stream.id() != 0, is_called_cuda() ? "CUDA graphs" : "Graphs",
              " must be captured on a non-default stream. (However, after capture, it's ok to "
              "replay them on the default stream.) Enter a stream() first.");
  if (pool == nullptr) pool = find_pool(make_pool_handle());
  if (is_called_cuda()) {  // a seed and an offset for each generator, as CUDAGeneratorImpl.cpp has
    const StreamScope on_default(npusim::default_stream(device));
    numbers_.clear();
    for (std::size_t i = 0; i < 2 * (1 + registered_.size()); ++i) {
      numbers_.push_back(std::make_unique<LibraryMemory>(sizeof(std::int64_t), device));
    }
  }
  translated([&] { npusim::begin_capture(stream, mode); });
  pool_ = std::move(pool);
  device_ = device;
  origin_ = &stream;
  streams_ = {&stream};
  g_capturing.store(this, std::memory_order_release);
  try {
    may_draw(default_generator(device));
    for (const at::Generator& generator : registered_) may_draw(generator);
    translated([] { npusim::attach(capture_observer()); });
    the_switch()(*this, true);
  } catch (...) {
    npusim::detach(capture_observer());
    g_capturing.store(nullptr);
    npusim::end_capture();
    put_back();
    clear_nodes();
    numbers_.clear();
    throw;
  }
}

void Graph::capture_end() {
  if (capturing() != this) {
    const std::string text =
        "capture_end() was called on a graph that captures nothing; call capture_begin() before";
    TORCH_CHECK(is_called_cuda(), text);
    constexpr int kIllegalState = 401;  // cudaErrorIllegalState
    throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                kIllegalState,
                                "CUDA error: the operation cannot be performed in the present "
                                "state\n" +
                                    text);
  }
  the_switch()(*this, false);
  npusim::detach(capture_observer());
  g_capturing.store(nullptr);
  std::string refused = npusim::end_capture();
  npusim::Stream& current = npusim::current_stream(device_);
  if (refused.empty() && &current != origin_) {
    refused = "it was ended on another stream than the one on which it began";
  }
  if (refused.empty()) refused = unjoined();
  put_back();
  if (refused.empty()) {
    captured_ = true;
    return;
  }
  clear_nodes();
  numbers_.clear();
  clear_captured_workspaces(*origin_);
  pool_.reset();
  TORCH_CHECK(false, "operation failed due to a previous error during capture: ", refused,
              ". Nothing of the capture is left.");
}

// The edges between streams: a record on a captured stream is a mark; a stream that waits for a
// mark joins the capture. Called under the event's lock, so nothing may be thrown: a wait for an
// event from outside only invalidates the capture.
void Graph::hear(const npusim::OrderRecord& record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool ours = streams_.count(record.stream) != 0;
  const auto key = std::make_pair(record.event, record.version);
  Node node;
  // The streams of the process are not const; the record only promises not to change them.
  node.stream = const_cast<npusim::Stream*>(record.stream);  // NOLINT
  if (record.kind == npusim::OrderKind::event_record && ours) {
    node.kind = Kind::record;
    node.mark = marked_++;
    known_marks_[key] = node.mark;
  } else if (record.kind == npusim::OrderKind::event_block) {
    const auto known = known_marks_.find(key);
    if (known == known_marks_.end()) {
      if (ours) {
        npusim::invalidate_capture(
            "a captured stream waits for an event that was recorded outside of the capture");
      }
      return;
    }
    if (streams_.insert(record.stream).second) npusim::join_capture(*record.stream);
    node.kind = Kind::block;
    node.mark = known->second;
  } else {
    if (record.kind == npusim::OrderKind::event_record) known_marks_.erase(key);
    return;
  }
  nodes_.push_back(std::move(node));
}

// --- Capture ------------------------------------------------------------------------------------

bool Graph::is_ours(npusim::Address address) const {
  const auto after = ours_.upper_bound(address);
  return after != ours_.begin() && address < std::prev(after)->second;
}

// A tensor of the pool becomes one that does not own its memory, so that this and later captures
// from the pool may reuse it; others are kept alive. A number on the host is copied, because core
// reuses its memory. Later changes of the original's metadata do not show in the result.
at::Tensor Graph::frozen(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage() || tensor.layout() != at::kStrided) return tensor;
  const bool number = tensor.is_cpu() && tensor.dim() == 0;
  if (number && !npusim::is_pinned(tensor.storage().data())) {
    at::Tensor copy = at::clone(tensor);
    copy.unsafeGetTensorImpl()->set_wrapped_number(
        tensor.unsafeGetTensorImpl()->is_wrapped_number());
    return copy;
  }
  auto impl = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  if (pool_->was_captured(reinterpret_cast<npusim::Address>(tensor.storage().data()))) {
    void* const data = const_cast<void*>(tensor.storage().data());  // NOLINT: an address only
    impl->set_storage_keep_dtype(c10::Storage(c10::make_intrusive<DeviceStorage>(
        c10::StorageImpl::use_byte_size_t(), tensor.storage().sym_nbytes(),
        c10::DataPtr(data, tensor.device()), device_allocator(), /*resizable=*/false)));
  }
  return at::Tensor(std::move(impl));
}

c10::IValue Graph::frozen(const c10::IValue& value) const {
  if (value.isTensor()) return frozen(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& item : value.toListRef()) list.push_back(frozen(item.toTensor()));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef()) {
      list.push_back(item.isTensor() ? std::optional<at::Tensor>(frozen(item.toTensor()))
                                     : std::nullopt);
    }
    return list;
  }
  return value;
}

void Graph::keep_before_write(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (npusim::dry() || !tensor.has_storage()) return;
    const c10::Storage& storage = tensor.storage();
    if (is_ours(reinterpret_cast<npusim::Address>(storage.data()))) return;
    if (storage.nbytes() == 0 || !is_kept_.insert(storage.unsafeGetStorageImpl()).second) return;
    PreImage image{storage, 0, std::vector<char>(storage.nbytes())};
    std::memcpy(image.bytes.data(), reachable(storage), image.bytes.size());
    before_.push_back(std::move(image));
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& item : value.toListRef()) keep_before_write(item);
  }
}

void Graph::keep_before_write(const Kernel::Range& range) {
  if (range.bytes == 0 || is_ours(range.first) || npusim::dry()) return;
  PreImage image{{}, range.first, std::vector<char>(range.bytes)};
  std::memcpy(image.bytes.data(), npusim::kernel_alias(reinterpret_cast<void*>(range.first)),
              range.bytes);
  before_.push_back(std::move(image));
}

void Graph::may_draw(const at::Generator& generator) {
  auto* philox = at::check_generator<PhiloxGenerator>(generator);
  const std::lock_guard<std::mutex> lock(philox->mutex_);
  generators_.push_back(
      {{c10::intrusive_ptr<PhiloxGenerator>::reclaim_copy(philox), philox->state()},
       *philox->state()});
}

void Graph::register_generator(const at::Generator& generator) {
  TORCH_CHECK(capturing() != this,
              "register_generator_state() was called while the graph is being captured; call it "
              "before capture_begin()");
  at::check_generator<PhiloxGenerator>(generator);
  registered_.push_back(generator);
}

void Graph::keep_draw(PhiloxGenerator& generator, c10::DeviceIndex device) {
  if (!captures(npusim::current_stream(device))) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool registered = std::any_of(generators_.begin(), generators_.end(), [&](const Saved& it) {
    return it.drawn.state == generator.state();
  });
  if (!registered) {
    npusim::invalidate_capture("an operator drew from a generator that is not registered");
    TORCH_CHECK(false,
                "Attempt to increase offset for a CUDA generator not in capture mode.\nThe "
                "generator is not registered with the graph that is being captured: call "
                "graph.register_generator_state(generator) before the capture.");
  }
  if (t_draws == nullptr) return;
  for (const Draw& noted : *t_draws) {
    if (noted.generator.get() == &generator) return;
  }
  t_draws->push_back(
      {c10::intrusive_ptr<PhiloxGenerator>::reclaim_copy(&generator), generator.state()});
}

void Graph::put_back() {
  // Operators keep whole storages and kernels ranges, which may overlap: the first one is right.
  for (auto image = before_.rbegin(); image != before_.rend(); ++image) {
    void* to = nullptr;
    if (image->storage) {
      if (image->storage.nbytes() != image->bytes.size()) continue;  // resized: the bytes are gone
      to = reachable(image->storage);
    } else {
      to = npusim::kernel_alias(reinterpret_cast<void*>(image->first));
    }
    std::memcpy(to, image->bytes.data(), image->bytes.size());
  }
  before_.clear();
  is_kept_.clear();
  // Results have no value before the first replay.
  for (const auto& [begin, end] : ours_) {
    if (npusim::dry()) break;
    std::memset(npusim::kernel_alias(reinterpret_cast<void*>(begin)), 0, end - begin);
  }
  ours_.clear();
  for (const Saved& saved : generators_) {
    const std::lock_guard<std::mutex> lock(saved.drawn.generator->mutex_);
    *saved.drawn.state = saved.before;
  }
  generators_.clear();
  while (marks_.size() < marked_) marks_.push_back(std::make_unique<npusim::Event>(device_));
  known_marks_.clear();
  streams_.clear();
}

void Graph::clear_nodes() noexcept {
  nodes_.clear();
  numbers_.clear();
  marks_.clear();
  marked_ = 0;
  captured_ = false;
}

void Graph::call(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack) {
  const c10::FunctionSchema& schema = op.schema();
  std::optional<c10::DeviceIndex> device;
  for (const c10::IValue& value : stack) {
    if (!device.has_value()) device = device_of(value);
  }
  if (!device.has_value() || capturing() != this || !captures(npusim::current_stream(*device))) {
    op.callBoxed(&stack);
    return;
  }
  npusim::Stream& stream = npusim::current_stream(*device);
  Node node;
  node.stream = &stream;
  node.op.emplace(op);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t i = 0; i < stack.size(); ++i) {
      if (is_written(schema.arguments()[i])) keep_before_write(stack[i]);
    }
    if (!is_view(schema)) {
      // One tensor given twice stays one: kernels ask for it.
      for (std::size_t i = 0; i < stack.size(); ++i) {
        const auto same = std::find_if(stack.begin(), stack.begin() + static_cast<long>(i),
                                       [&](const c10::IValue& other) {
                                         return other.isTensor() && stack[i].isTensor() &&
                                                other.toTensor().is_same(stack[i].toTensor());
                                       });
        const auto at = static_cast<std::size_t>(same - stack.begin());
        node.arguments.push_back(at < i ? node.arguments[at] : frozen(stack[i]));
      }
    }
  }
  {
    const npusim::LaunchingScope captured(npusim::detail::Launching::captured);
    const FromPool from_pool(*pool_, *device);
    const GraphBlocks written_down(node.blocks, GraphBlocks::Mode::capture);
    const NotesDraws noted(node.draws);
    op.callBoxed(&stack);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const npusim::alloc::Block& block : node.blocks.blocks) {
    npusim::Address& end = ours_[block.address];
    end = std::max(end, block.address + block.bytes);
    pool_->add_captured(block.address, end);
  }
  if (!is_view(schema)) nodes_.push_back(std::move(node));
}

void Graph::call(npusim::Stream& stream, Kernel kernel) {
  Node node;
  node.kind = Kind::kernel;
  node.stream = &stream;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Kernel::Range& range : kernel.writes) keep_before_write(range);
  }
  {
    const npusim::LaunchingScope captured(npusim::detail::Launching::captured);
    kernel.submit(stream);
  }
  node.kernel = std::move(kernel);
  const std::lock_guard<std::mutex> lock(mutex_);
  nodes_.push_back(std::move(node));
}

// Names a side stream with work that the stream of the capture does not wait for; empty: there is
// none. Backwards: a block on a joined stream awaits a mark, whose record joins the stream before
// it.
std::string Graph::unjoined() const {
  std::unordered_set<const npusim::Stream*> joined{origin_};
  std::unordered_set<std::size_t> awaited;
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    const bool is_joined = joined.count(node->stream) != 0;
    if (node->kind == Kind::block && is_joined) awaited.insert(node->mark);
    if (node->kind == Kind::record && awaited.count(node->mark) != 0) joined.insert(node->stream);
    if ((node->kind == Kind::op || node->kind == Kind::kernel) && !is_joined) {
      return "stream " + std::to_string(node->stream->id()) +
             " has captured work for which the stream of the capture does not wait";
    }
  }
  return {};
}

// --- Replay -------------------------------------------------------------------------------------

void Graph::replay() {
  TORCH_CHECK(captured_, "Called CUDAGraph::replay without a preceding successful capture.\n",
              "Call capture_begin() and capture_end() before replay().");
  TORCH_CHECK(capturing() == nullptr, "a graph cannot be replayed while one is being captured");
  forget_values();
  const NoWrappers no_wrappers;
  const npusim::LaunchingScope replayed(npusim::detail::Launching::first_replayed);
  npusim::Stream& launched_on = npusim::current_stream(device_);
  std::vector<std::int64_t> times(marks_.size());
  std::vector<c10::IValue> stack;
  for (Node& node : nodes_) {
    npusim::Stream& stream = node.stream == origin_ ? launched_on : *node.stream;
    switch (node.kind) {
      case Kind::op: {
        const StreamScope on_stream(stream);
        stack = node.arguments;
        const GraphBlocks planned(node.blocks, GraphBlocks::Mode::replay);
        const DrawScope draws(node.draws);
        node.op->callBoxed(&stack);
        stack.clear();
        break;
      }
      case Kind::kernel:
        node.kernel.submit(stream);
        break;
      case Kind::record:
        times[node.mark] = std::max(stream.done_at_ns(), npusim::host_now_ns());
        npusim::note_order(npusim::OrderKind::event_record, stream.device(), &stream,
                           marks_[node.mark].get(), 1, times[node.mark]);
        break;
      case Kind::block:
        stream.start_after_ns(times[node.mark]);
        npusim::note_order(npusim::OrderKind::event_block, stream.device(), &stream,
                           marks_[node.mark].get(), 1, times[node.mark]);
        break;
    }
  }
}

void Graph::reset() {
  TORCH_CHECK(capturing() != this, "reset() was called while the graph is being captured");
  if (captured_) clear_captured_workspaces(*origin_);  // one of the capture would hold its pool
  clear_nodes();
  pool_.reset();
}

// --- Inputs that are gone -----------------------------------------------------------------------

std::string Graph::freed_inputs() const {
  struct Held {
    std::size_t times = 0;  // by this graph
    std::size_t owners = 0;
    std::string first;
  };
  std::unordered_map<const c10::StorageImpl*, Held> inputs;
  std::unordered_set<const c10::TensorImpl*> seen;  // one that is given twice has it once
  for (const Node& node : nodes_) {
    const auto look_at = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.has_storage()) return;
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) return;
      const c10::Storage& storage = tensor.storage();
      if (storage.nbytes() == 0 ||
          !(tensor.is_privateuseone() || npusim::is_pinned(storage.data())))
        return;
      // The memory of the pool is held without its blocks: nobody owns it through this storage.
      if (storage.data_ptr().get_context() == nullptr) return;
      Held& held = inputs[storage.unsafeGetStorageImpl()];
      if (held.times++ == 0) {
        held.owners = storage.use_count();
        std::ostringstream text;
        text << c10::toString(tensor.scalar_type()) << " " << tensor.sizes() << " that "
             << c10::toString(node.op->operator_name()) << " reads";
        held.first = text.str();
      }
    };
    for (const c10::IValue& value : node.arguments) {
      if (value.isTensor()) {
        look_at(value.toTensor());
      } else if (value.isTensorList() || value.isOptionalTensorList()) {
        for (const c10::IValue& item : value.toListRef()) {
          if (item.isTensor()) look_at(item.toTensor());
        }
      }
    }
  }
  std::string freed;
  for (const auto& [storage, held] : inputs) {
    if (held.owners > held.times) continue;
    freed += (freed.empty() ? "" : "; ") + held.first;
  }
  return freed;
}

}  // namespace torch_npusim
