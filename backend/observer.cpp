// SPDX-License-Identifier: BSD-3-Clause
// The list of observers, and what a thread has noted of the command that it runs.
#include "backend/observer.h"

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "backend/clock.h"
#include "backend/error.h"
#include "backend/event.h"
#include "backend/pinned_memory.h"
#include "backend/process.h"

namespace npusim {

namespace {

constexpr std::size_t kMostObservers = 8;

struct Watch {
  std::mutex mutex;  // guards the sequence, and orders all records
  std::uint64_t sequence = 0;
  std::array<std::atomic<Observer*>, kMostObservers> observers{};

  template <class Tell>
  void tell(const Tell& tell_one) noexcept {
    for (const auto& slot : observers) {
      if (Observer* observer = slot.load(std::memory_order_acquire)) tell_one(*observer);
    }
  }
};

Watch& watch() {
  static Watch* const kWatch = new Watch();  // leaked: frees arrive while the process exits
  return *kWatch;
}

std::atomic<SiteGatherer> g_gatherer{nullptr};

// The operands of one command. Capacity is kept, so that noting allocates nothing in the long run.
class Notes {
 public:
  void add(const Operand& operand) {
    const std::size_t dims = operand.sizes.size();
    notes_.push_back(operand);
    starts_.push_back(numbers_.size());
    numbers_.insert(numbers_.end(), operand.sizes.begin(), operand.sizes.end());
    numbers_.insert(numbers_.end(), operand.strides.begin(), operand.strides.end());
    notes_.back().sizes = {operand.sizes.data(), dims};
  }
  // The spans hold until the next add().
  std::span<const Operand> all() noexcept {
    for (std::size_t i = 0; i < notes_.size(); ++i) {
      const std::int64_t* numbers = numbers_.data() + starts_[i];
      const std::size_t dims = notes_[i].sizes.size();
      notes_[i].sizes = {numbers, dims};
      notes_[i].strides = {numbers + dims, dims};
    }
    return notes_;
  }
  void clear() noexcept {
    notes_.clear();
    starts_.clear();
    numbers_.clear();
  }

 private:
  std::vector<Operand> notes_;
  std::vector<std::size_t> starts_;
  std::vector<std::int64_t> numbers_;
};

struct ThreadNotes {
  Notes operands;
  bool described = false;  // by an OperandScope
};
thread_local ThreadNotes t_notes;

// Without a constructor or destructor, so that they are found quickly.
constinit thread_local std::uint64_t t_correlation = 0;
constinit thread_local Site t_body_site = 0;

}  // namespace

void attach(Observer& observer) {
  check_not_forked();
  Watch& all = watch();
  const std::lock_guard lock(all.mutex);
  std::atomic<Observer*>* free_slot = nullptr;
  for (auto& slot : all.observers) {
    const Observer* known = slot.load(std::memory_order_relaxed);
    if (known == &observer) return;
    if (known == nullptr && free_slot == nullptr) free_slot = &slot;
  }
  NPUSIM_CHECK(free_slot != nullptr, "there are ", kMostObservers,
               " observers already; detach one first");
  free_slot->store(&observer, std::memory_order_release);
  detail::set_slow_path(detail::kObserved);
}

void detach(Observer& observer) noexcept {
  Watch& all = watch();
  const std::lock_guard lock(all.mutex);
  bool others = false;
  for (auto& slot : all.observers) {
    if (slot.load(std::memory_order_relaxed) == &observer) slot.store(nullptr);
    others |= slot.load(std::memory_order_relaxed) != nullptr;
  }
  if (!others) detail::clear_slow_path(detail::kObserved);
}

void set_site_gatherer(SiteGatherer gatherer) noexcept {
  g_gatherer.store(gatherer, std::memory_order_release);
}

void set_correlation(std::uint64_t correlation) noexcept { t_correlation = correlation; }

namespace {
// Host memory that is not pinned takes part in copies that the host waits for, and in nothing else.
bool is_shared(Address address) noexcept {
  const auto* pointer = reinterpret_cast<const void*>(address);
  return is_device_address(pointer) || is_pinned(pointer);
}
}  // namespace

void note_operand(const Operand& operand) {
  if (!observed() || detail::t_state.run == nullptr) return;
  t_notes.operands.add(operand);
}

void note_range(const void* first, std::size_t bytes, bool written) {
  if (!observed() || detail::t_state.run == nullptr || t_notes.described) return;
  const auto address = reinterpret_cast<Address>(first);
  if (!is_shared(address)) return;
  const auto size = static_cast<std::int64_t>(bytes);
  const std::int64_t stride = 1;
  t_notes.operands.add({address, address, written, 1, nullptr, {&size, 1}, {&stride, 1}});
}

OperandScope::OperandScope() noexcept { t_notes.described = true; }

void OperandScope::add(const Operand& operand) {
  if (observed() && is_shared(operand.first)) t_notes.operands.add(operand);
}

OperandScope::~OperandScope() {
  t_notes.described = false;
  if (detail::t_state.run == nullptr) t_notes.operands.clear();
}

std::uint64_t newest_record() noexcept {
  Watch& all = watch();
  const std::lock_guard lock(all.mutex);
  return all.sequence;
}

void note_host_access(const char* name, const Operand& operand, std::uint64_t as_of) {
  if (!observed()) return;
  const Site site = detail::gather_site();
  Watch& all = watch();
  const std::lock_guard lock(all.mutex);
  const HostAccessRecord record{as_of != 0 ? as_of : ++all.sequence, name, site};
  all.tell([&](Observer& observer) { observer.on_host_access(record, {&operand, 1}); });
}

void settle_host_access() {
  for (const auto& slot : watch().observers) {
    if (Observer* observer = slot.load(std::memory_order_acquire)) observer->after_command();
  }
}

void note_memory(MemoryKind kind, const void* address, std::size_t bytes, const Stream* stream,
                 std::uint64_t pool) noexcept {
  if (!observed() || address == nullptr || in_bad_fork()) return;
  Watch& all = watch();
  bool wants_site = kind == MemoryKind::allocate || kind == MemoryKind::pinned_allocate;
  if (kind == MemoryKind::free) {
    const std::lock_guard lock(all.mutex);
    all.tell([&](Observer& observer) {
      wants_site |= observer.wants_site_of_free(reinterpret_cast<Address>(address));
    });
  }
  const Site site = wants_site ? detail::gather_site(kind != MemoryKind::free) : 0;
  const std::lock_guard lock(all.mutex);
  const MemoryRecord record{++all.sequence, kind, reinterpret_cast<Address>(address), bytes, stream,
                            pool,           site};
  all.tell([&](Observer& observer) { observer.on_memory(record); });
}

void note_order(OrderKind kind, int device, const Stream* stream, const Event* event,
                std::uint64_t version, std::int64_t time_ns) noexcept {
  if (!observed() || in_bad_fork()) return;
  // Marks are noted under the lock of their event, where nobody may be asked.
  const bool waits = kind == OrderKind::stream_wait || kind == OrderKind::device_wait ||
                     kind == OrderKind::event_wait || kind == OrderKind::query;
  const Site site = waits ? detail::gather_site() : 0;
  Watch& all = watch();
  const std::lock_guard lock(all.mutex);
  const OrderRecord record{++all.sequence,
                           kind,
                           device,
                           stream,
                           event,
                           version,
                           host_now_ns(),
                           time_ns,
                           detail::t_state.launching == detail::Launching::directly,
                           site};
  all.tell([&](Observer& observer) { observer.on_order(record); });
}

void note_kept(const Promise* promise, std::int64_t start_ns, std::int64_t end_ns) noexcept {
  if (!observed() || in_bad_fork()) return;
  Watch& all = watch();
  const std::lock_guard lock(all.mutex);
  all.tell([&](Observer& observer) { observer.on_kept(promise, start_ns, end_ns); });
}

namespace detail {

Site gather_site(bool may_wait) noexcept {
  if (t_state.run != nullptr) return t_body_site;
  const SiteGatherer gatherer = g_gatherer.load(std::memory_order_acquire);
  return gatherer == nullptr ? 0 : gatherer(may_wait);
}

ObservedCommand::ObservedCommand(const RunningCommand& run, const Stream& stream,
                                 const CommandInfo& info, Site site) noexcept
    : active_(observed() && stream.device() >= 0 && t_state.launching != Launching::captured),
      run_(run),
      stream_(stream),
      info_(info),
      site_(site) {
  t_body_site = site;
}

ObservedCommand::~ObservedCommand() {
  t_body_site = 0;
  Notes& operands = t_notes.operands;
  if (active_) {
    Watch& all = watch();
    const std::lock_guard lock(all.mutex);
    const CommandRecord record{++all.sequence,  info_,         stream_,     run_.host_ns(),
                               run_.start_ns(), run_.end_ns(), run_.cost(), run_.extra_ns(),
                               run_.paid(),     t_correlation, site_,       run_.promise()};
    all.tell([&](Observer& observer) { observer.on_command(record, operands.all()); });
  }
  operands.clear();
}

}  // namespace detail

}  // namespace npusim
