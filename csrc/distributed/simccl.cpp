// SPDX-License-Identifier: BSD-3-Clause
// Every collective enters through start(): it orders the streams, leaves the rank's notice and
// hands the bytes to the transport. The bytes of each collective are in collectives.cpp.
#include "csrc/distributed/simccl.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include "backend/visible_devices.h"
#include "csrc/distributed/call.h"
#include "csrc/distributed/caller.h"
#include "csrc/errors.h"
#include "csrc/launch/launch.h"
#include "csrc/observers/observe.h"
#include "csrc/runtime/known_values.h"

namespace torch_npusim::distributed {

using c10d::OpType;

namespace {

constinit std::atomic<std::uint64_t> g_made{0};
constinit std::atomic<Simccl::Maker> g_maker{nullptr};

std::mutex g_communicators_mutex;
std::vector<std::pair<int, int>>& known_communicators() {
  static auto* made = new std::vector<std::pair<int, int>>;
  return *made;
}

const std::string& command_name(OpType type) {
  static const auto* names = [] {
    auto* made = new std::map<OpType, std::string>;
    for (int i = 0; i <= static_cast<int>(OpType::REDUCE_SCATTER_TENSOR_COALESCED); ++i) {
      const auto one = static_cast<OpType>(i);
      (*made)[one] = std::string("simccl::") + operation_name(one);
    }
    return made;
  }();
  return names->at(type);
}

// What torch's own backends call it in profiles.
std::string title_of(OpType type) {
  switch (type) {
    case OpType::_ALLGATHER_BASE:
      return ":_all_gather_base";
    case OpType::_REDUCE_SCATTER_BASE:
      return ":_reduce_scatter_base";
    case OpType::ALLTOALL_BASE:
      return ":all_to_all";
    default:
      return std::string(":") + operation_name(type);
  }
}

}  // namespace

std::shared_ptr<npusim::CollectiveBoard> meet(const c10::intrusive_ptr<c10d::Store>& store,
                                              int rank, int size) {
  const std::string key = "npusim/collective_board";
  std::shared_ptr<npusim::CollectiveBoard> notices;
  if (rank == 0) {
    notices = translated([&] { return npusim::CollectiveBoard::make(size); });
    const std::string& address = notices->address();
    store->set(key, std::vector<uint8_t>(address.begin(), address.end()));
  } else {
    const std::vector<uint8_t> address = store->get(key);
    notices = translated([&] {
      return npusim::CollectiveBoard::join(std::string(address.begin(), address.end()), size);
    });
  }
  notices->enter(rank);
  return notices;
}

Simccl::Simccl(c10::intrusive_ptr<c10d::Backend> transport,
               std::shared_ptr<npusim::CollectiveBoard> notices,
               const c10::intrusive_ptr<Simccl>& world, int rank, std::vector<int> ranks,
               std::string name, std::chrono::milliseconds timeout, std::string label)
    : Backend(rank, static_cast<int>(ranks.size())),
      group_(std::make_shared<Group>()),
      options_(c10::make_intrusive<SimcclOptions>("simccl", timeout)),
      label_(std::move(label)),
      uid_(g_made.fetch_add(1)) {
  group_->name = std::move(name);
  group_->rank = rank;
  group_->ranks = std::move(ranks);
  standing_->uid = uid_;
  standing_->rank = group_->in_job(rank);
  group_->notices = std::move(notices);
  group_->board = world ? world->group_->notices : group_->notices;
  group_->transport = std::move(transport);
}

Simccl::~Simccl() { shutdown(); }

void Simccl::setTimeout(std::chrono::milliseconds timeout) { options_->timeout = timeout; }

void Simccl::set_maker(Maker maker) noexcept { g_maker.store(maker); }

c10::intrusive_ptr<c10d::Backend> Simccl::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                const std::vector<int>& ranks,
                                                const c10::intrusive_ptr<Options>& options) {
  // Under the CUDA alias torch knows this backend by two devices and asks for each.
  if (std::exchange(split_name_, options->group_name) == options->group_name) {
    auto part = split_part_.lock();
    if (part && static_cast<Simccl&>(*part).open()) return part;
    if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
  }
  count_split();
  const auto seat = std::find(ranks.begin(), ranks.end(), rank_);
  if (seat == ranks.end()) return nullptr;
  Part part{store,  static_cast<int>(seat - ranks.begin()),
            {},     options->group_name,
            label_, options->timeout};
  for (const int rank : ranks) part.ranks.push_back(group_->in_job(rank));
  auto made = g_maker.load()(part);
  auto& own = static_cast<Simccl&>(*made);
  own.check_nan_ = check_nan_;
  own.blocking_wait_ = blocking_wait_;
  own.timed_ = timed_;
  if (const auto* asked = dynamic_cast<const SimcclOptions*>(options.get())) {
    own.options_->is_high_priority_stream = asked->is_high_priority_stream;
  }
  split_part_ = c10::weak_intrusive_ptr<c10d::Backend>(made);
  return made;
}

void Simccl::addEphemeralTimeout(const std::chrono::milliseconds& more) {
  extensions_.push_back({more, nullptr});
}

std::chrono::milliseconds Simccl::limit(std::chrono::milliseconds asked) {
  if (asked != c10d::kUnsetTimeout) return asked;
  std::erase_if(extensions_,
                [](const Extension& one) { return one.until != nullptr && one.until->settled(); });
  std::chrono::milliseconds sum = options_->timeout;
  for (const Extension& one : extensions_) sum += one.more;
  return sum;
}

// What is still under way gets a moment to end. What does not is left to gloo's own limit, and
// nobody hears of it: streams are as good as new for the next group. Then the others know that they
// need not wait for this rank.
void Simccl::shutdown() {
  constexpr auto kMoment = std::chrono::seconds(2);
  for (const std::shared_ptr<Pending>& pending : under_way()) {
    pending->set_limit(kMoment);
    try {
      npusim::settle_all({pending}, 0);
    } catch (const std::exception&) {  // nobody has asked for it
    }
  }
  npusim::forget_promises([&](const npusim::Promise& promise) {
    const auto* pending = dynamic_cast<const Pending*>(&promise);
    return pending != nullptr && &pending->group() == group_.get() && pending->failure() != nullptr;
  });
  group_->end("was destroyed; initialize again");
  if (group_->notices != nullptr) group_->notices->leave(rank_);
}

std::vector<std::shared_ptr<Pending>> Simccl::under_way() const {
  std::vector<std::shared_ptr<Row>> rows = {collectives_};
  for (const auto& [pair, row] : transfers_) rows.push_back(row);
  std::vector<std::shared_ptr<Pending>> all;
  for (const std::shared_ptr<Row>& row : rows) {
    const std::lock_guard lock(row->mutex);
    all.insert(all.end(), row->open.begin(), row->open.end());
  }
  return all;
}

void Simccl::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK_WITH(DistBackendError, timed_,
                   "simccl: a hook of completion takes timings: TORCH_NCCL_ENABLE_TIMING=1, or "
                   "_enable_collectives_timing() before it");
  const std::lock_guard lock(group_->mutex);
  TORCH_CHECK_WITH(DistBackendError, !group_->hook, "simccl: the group has a hook of completion");
  onCompletionHook_ = std::move(hook);  // torch then waits before it destroys the group
  group_->hook = onCompletionHook_;
}

void Simccl::waitForPendingWorks() {
  translated([&] {
    for (const std::shared_ptr<Pending>& pending : under_way()) npusim::settle_all({pending}, 0);
  });
  group_->tell_hook();
}

std::shared_ptr<FlightEntry> Simccl::record(const std::string& title, bool is_transfer,
                                            const Tensors& inputs, const Tensors& outputs) {
  if (standing_->group.empty()) {
    standing_->group = getGroupUid().empty() ? group_->name : getGroupUid();
    standing_->description = getGroupDesc();
    standing_->ranks = group_->ranks;
  }
  auto made = std::make_shared<FlightEntry>();
  made->standing = standing_;
  made->title = title;
  made->is_transfer = is_transfer;
  made->collective = group_->collectives;
  made->transfer = group_->transfers;
  made->operation = group_->operations;
  made->timeout_ms = options_->timeout.count();
  made->timed = timed_;
  made->take(inputs, outputs);
  return keep(std::move(made));
}

// As ProcessGroupNCCL: calls between startCoalescing() and endCoalescing() share a number, and the
// end of all is that of a last record.
void Simccl::note(const Call& call, const std::shared_ptr<Pending>& pending) {
  if (noted_ || capacity() == 0) return;
  const bool is_transfer = call.peer >= 0;
  bool& coalesces = is_transfer ? coalesces_transfers_ : coalesces_collectives_;
  if (coalescing_ == 0 || !std::exchange(coalesces, true)) {
    ++(is_transfer ? group_->transfers : group_->collectives);
  }
  ++group_->operations;
  std::string title = title_of(call.type).substr(1);
  if (call.type == OpType::BARRIER) title = "all_reduce_barrier";
  if (is_transfer) {
    title += c10::str(" ", rank_, call.type == OpType::SEND ? "->" : "<-", call.peer);
  }
  const bool by_root = call.type == OpType::GATHER || call.type == OpType::SCATTER;
  const auto made =
      record(title, is_transfer, call.reads.empty() && !by_root ? call.writes : call.reads,
             call.writes.empty() && !by_root ? call.reads : call.writes);
  if (coalescing_ == 0) pending->report_to(made);
}

bool Simccl::open() const {
  const std::lock_guard lock(group_->mutex);
  return group_->over == nullptr;
}

void Simccl::connect(int device) {
  if (!used_devices_.insert(device).second) return;
  const std::lock_guard lock(g_communicators_mutex);
  known_communicators().emplace_back(device, getSize());
}

std::vector<std::pair<int, int>> Simccl::communicators() {
  const std::lock_guard lock(g_communicators_mutex);
  return known_communicators();
}

// The others are told that this rank has left.
void Simccl::abort() {
  group_->end("was aborted; destroy_process_group() and initialize again");
  group_->aborted = true;
  if (group_->notices != nullptr) group_->notices->leave(rank_);
}

// A stream for the collectives, and one for each direction to each peer: to and fro must not wait
// for each other, as two ranks may start with either.
npusim::Stream& Simccl::communication_stream(int device, const Call& call) {
  const int row = call.type == OpType::RECV ? -2 - call.peer : call.peer;
  npusim::Stream*& stream = streams_[{device, row}];
  if (stream == nullptr) {
    translated([&] { stream = &npusim::next_stream(device, npusim::kHighestPriority); });
  }
  return *stream;
}

std::shared_ptr<Row> Simccl::transfers(int from, int to) {
  std::shared_ptr<Row>& row = transfers_[{from, to}];
  if (row == nullptr) {
    row = std::make_shared<Row>();
    row->channel = {from, to};
  }
  return row;
}

namespace {
// No bytes move in a dry run. Small integers that are gathered or broadcast, such as the number of
// parameters that DDP compares, are known where this rank knows its own: ranks count as alike.
void know_results(OpType type, const std::vector<at::Tensor>& reads,
                  const std::vector<at::Tensor>& writes) {
  if (type == OpType::BROADCAST) return;
  const bool gathers = type == OpType::ALLGATHER || type == OpType::_ALLGATHER_BASE;
  at::Tensor own;
  if (gathers && reads.size() == 1) own = known_values_of(reads[0]);
  if (own.defined()) own = own.reshape(-1);
  const auto know = [&](const at::Tensor& tensor) {
    const bool whole = own.defined() && own.numel() > 0 && tensor.numel() % own.numel() == 0;
    know_values(tensor, whole ? own.repeat({tensor.numel() / own.numel()}).view(tensor.sizes())
                              : at::Tensor());
  };
  std::int64_t elements = 0;
  bool together = true;
  for (const at::Tensor& tensor : writes) {
    elements += tensor.numel();
    together &= tensor.is_contiguous() && tensor.is_alias_of(writes[0]);
  }
  // Results that are the parts of one block, as those of all_gather_object() are.
  if (writes.size() > 1 && together &&
      static_cast<std::size_t>(elements) * writes[0].itemsize() == writes[0].storage().nbytes()) {
    return know(writes[0].as_strided({elements}, {1}, 0));
  }
  for (const at::Tensor& tensor : writes) know(tensor);
}
}  // namespace

// Operands of reductions in place are inputs too.
void Simccl::refuse_nan(const Call& call) {
  const bool in_place = call.reads.empty() && call.asked != c10d::ReduceOp::UNUSED;
  for (const at::Tensor& tensor : in_place ? call.writes : call.reads) {
    if (npusim::dry() || !at::isFloatingType(tensor.scalar_type())) continue;
    at::Tensor values = values_of(tensor);
    if (values.itemsize() == 1) values = values.to(at::kFloat);  // those types cannot be compared
    TORCH_CHECK(!values.isnan().any().item<bool>(), "simccl: NaN found in input tensor of ",
                operation_name(call.type), " (TORCH_NCCL_NAN_CHECK)");
  }
}

WorkPtr Simccl::start(Call& call) {
  {
    const std::lock_guard lock(group_->mutex);
    TORCH_CHECK_WITH(DistBackendError, group_->over == nullptr, "simccl: group '", group_->name,
                     "' ", group_->over);
  }
  const std::shared_ptr<Row>& row = call.row != nullptr ? call.row : collectives_;
  Tensors kept = call.reads;
  kept.insert(kept.end(), call.writes.begin(), call.writes.end());
  const int device = call.device ? call.device->index() : kept.at(0).device().index();

  connect(device);

  Description what;
  what.type = call.type;
  what.collective = call.collective;
  what.dtype = kept.empty() ? at::kByte : kept[0].scalar_type();
  what.reduction = call.asked;
  what.root = call.root;
  what.count = call.count;
  what.bytes = call.bytes;
  what.peer = call.peer;
  what.queued = call.queued;
  if (label_ != "gloo") {  // whose ranks may share a device
    what.device = npusim::visible_devices().at(static_cast<std::size_t>(device));
  }
  what.sends = call.sends;
  what.expects = call.expects;
  what.numel_in = total_numel(call.reads);
  what.numel_out = total_numel(call.writes);

  return translated([&]() -> WorkPtr {
    {  // Nobody may be further ahead of the others than the notices are kept.
      std::shared_ptr<Pending> oldest;
      {
        const std::lock_guard lock(row->mutex);
        if (row->open.size() >= npusim::CollectiveBoard::kAhead) oldest = row->open.front();
      }
      if (oldest != nullptr) npusim::settle_all({oldest}, 0);
    }
    npusim::Stream& current = npusim::current_stream(device);
    const bool own_stream = call.async || call.peer >= 0;
    npusim::Stream& stream = own_stream ? communication_stream(device, call) : current;
    // The transport keeps the order of what is queued in a row. All else waits here for what is
    // before it.
    const auto settle_others = [&](npusim::Stream& on) {
      for (const auto& promise : npusim::promises_of(on)) {
        const auto* pending = dynamic_cast<const Pending*>(promise.get());
        if (!call.queued || check_nan_ || pending == nullptr || !pending->queued_in(*row)) {
          npusim::keep_promises(on);
          return;
        }
      }
    };
    settle_others(current);
    if (&stream != &current) {
      npusim::Event before(device);
      before.record(current);
      before.block(stream);
      settle_others(stream);
    }
    if (check_nan_) refuse_nan(call);
    auto pending = std::make_shared<Pending>(group_, row, what, limit(call.timeout));
    for (Extension& one : extensions_) {
      if (one.until == nullptr) one.until = pending;
    }
    note(call, pending);
    const npusim::CommandInfo info{command_name(call.type).c_str(),
                                   npusim::CommandKind::collective};
    const std::string line = current_line();
    if (C10_UNLIKELY(npusim::dry())) {
      know_results(call.type, call.reads, call.writes);
    }
    npusim::run_now(stream, info, [&] {
      for (const at::Tensor& tensor : call.reads) note_use(tensor, Use::reads);
      for (const at::Tensor& tensor : call.writes) note_use(tensor, Use::writes);
      npusim::RunningCommand& run = *npusim::detail::t_state.run;
      if (run.fault().hit) {
        pending->stay_away(run.fault().kind, line);
        return;
      }
      run.promises(pending.get());
      pending->announce(run.start_ns(), run.fault().slowdown, line);
      const NoWrappers no_wrappers;
      // Gloo's threads would go on recording when the profiler has ended.
      const at::DisableRecordFunctionGuard unseen;
      if (npusim::dry()) return pending->moving({}, kept, nullptr);
      std::vector<Inner> works = call.move();  // which may say what is to be done at the end
      pending->moving(std::move(works), kept, call.finish);
    });
    {
      const std::lock_guard lock(row->mutex);
      row->open.push_back(pending);
    }
    npusim::add_promise(stream, pending);
    auto work = c10::make_intrusive<SimWork>(
        rank_, call.type, stream, pending, call.writes.empty() ? call.reads : call.writes,
        call.blocks_host || blocking_wait_, label_ + title_of(call.type),
        call.reads.empty() ? call.writes : call.reads);
    if (coalescing_ > 0) parts_.push_back(work);
    // A transfer that nobody waits for by name is one that the current stream waits for.
    if (!call.async && own_stream) work->synchronize();
    return work;
  });
}

void Simccl::startCoalescing() { ++coalescing_; }

WorkPtr Simccl::endCoalescing() {
  TORCH_CHECK(coalescing_ > 0, "simccl: endCoalescing() without startCoalescing()");
  --coalescing_;
  std::vector<c10::intrusive_ptr<SimWork>> parts = std::exchange(parts_, {});
  const bool half = !own_sends_.empty() || !own_recvs_.empty();
  own_sends_.clear();
  own_recvs_.clear();
  TORCH_CHECK_WITH(DistBackendError, !half, "simccl: rank ", rank_,
                   " transfers to itself with one end only");
  const bool all_transfers = !coalesces_collectives_;
  coalesces_collectives_ = coalesces_transfers_ = false;
  if (parts.empty()) return nullptr;
  if (capacity() > 0) {
    const auto made = record("coalesced", all_transfers, {}, {});
    made->parts = static_cast<int>(parts.size());
    for (const auto& part : parts) part->report_to(made);
  }
  return c10::make_intrusive<SimWork>(rank_, std::move(parts));
}

WorkPtr Simccl::coalesced(const char* title, const Tensors& inputs, const Tensors& outputs,
                          const std::function<void()>& calls) {
  const std::size_t before = parts_.size();
  std::shared_ptr<FlightEntry> made;
  if (capacity() > 0) {
    ++group_->collectives;
    ++group_->operations;
    made = record(title, /*is_transfer=*/false, inputs, outputs);
  }
  const bool noted = std::exchange(noted_, true);
  ++coalescing_;
  try {
    calls();
  } catch (...) {
    --coalescing_;
    noted_ = noted;
    parts_.resize(before);
    throw;
  }
  --coalescing_;
  noted_ = noted;
  if (made != nullptr) {
    made->parts = static_cast<int>(parts_.size() - before);
    for (std::size_t i = before; i < parts_.size(); ++i) parts_[i]->report_to(made);
  }
  if (coalescing_ > 0) return parts_.back();
  return c10::make_intrusive<SimWork>(rank_, std::exchange(parts_, {}));
}

}  // namespace torch_npusim::distributed
