// SPDX-License-Identifier: BSD-3-Clause
// Observers hear of every command with its operands, every mark and wait, every allocation and
// free, in one order (rules V1-V3). A *record* is one such message; a function note_...() sends
// one. Invariant: without an observer nothing is done and nothing is kept; the bit kObserved of
// slow_path.h says whether there is one. Records are made under one lock, which is never held while
// a body runs or while anything outside of backend/ and the observers is called.
// Records borrow: pointers and spans in them hold during the call, unless they say otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/memory.h"
#include "backend/observed_command.h"

namespace npusim {

class Event;
class Promise;

// Memory that a command, or the host, reads or writes; `written` also if it is read too.
struct Operand {
  Address allocation;  // where its allocation starts
  Address first;       // of its first element
  bool written;
  std::uint32_t element_bytes;
  const char* type;                       // of its elements, "float32"; nullptr: plain bytes
  std::span<const std::int64_t> sizes;    // in elements; none: a single one
  std::span<const std::int64_t> strides;  // in bytes
};

struct CommandRecord {
  std::uint64_t sequence;  // counts the records of all kinds
  const CommandInfo& info;
  const Stream& stream;
  std::int64_t host_ns;  // when the host had launched it
  std::int64_t start_ns;
  std::int64_t end_ns;
  Cost cost;                  // as it is charged in the end
  std::int64_t extra_ns;      // what a fault added to the duration
  bool paid;                  // the host paid for the launch; a graph pays once
  std::uint64_t correlation;  // the thread's, see set_correlation()
  Site site;
  const Promise* promise;  // if set, the times above are provisional and on_kept() has them later
};

// An access of the host itself to memory that commands use too.
struct HostAccessRecord {
  std::uint64_t sequence;
  const char* name;
  Site site;
};

enum class OrderKind : std::uint8_t {
  event_record,    // `stream` reaches the mark after all that it was given
  event_block,     // what `stream` is given later waits for the mark
  event_wait,      // the host waited for the mark, or asked and was told that it is reached
  event_end,       // the event is destroyed
  stream_wait,     // likewise for all work of `stream`
  device_wait,     // likewise for all streams of the device
  allocator_wait,  // the allocator waited for all streams of the device; the program did not
  allocator_mark,  // likewise, until the end of one command
  query,           // the host asked whether work is done, which takes time; then the answer
  host_time,       // time passed on the host, because the program said so
  host_layer,      // likewise, for work of the framework around commands
};
struct OrderRecord {
  std::uint64_t sequence;
  OrderKind kind;
  int device;
  const Stream* stream;   // nullptr where there is none
  const Event* event;     // likewise
  std::uint64_t version;  // of the event's mark
  std::int64_t host_ns;   // afterwards
  std::int64_t time_ns;   // of the mark; query and of the host's: how long it took
  bool paid;              // as in CommandRecord
  Site site;              // of a wait or query of the program
};

enum class MemoryKind : std::uint8_t {
  allocate,
  free,
  record_stream,  // `stream` uses the block too: it is not handed out before that is done
  pinned_allocate,
  pinned_free,
};
struct MemoryRecord {
  std::uint64_t sequence;
  MemoryKind kind;
  Address address;
  std::size_t bytes;
  const Stream* stream;  // whose block it is, or who uses it; nullptr: pinned memory, or a free
  std::uint64_t pool;    // blocks of different pools never take each other's place
  Site site;
};

// Observer: implement the functions that you need. All but after_command() are called under the
// lock, one at a time: they must not throw, launch, wait, or allocate in the long run.
class Observer {
 public:
  virtual void on_command(const CommandRecord&, std::span<const Operand>) noexcept {}
  virtual void on_host_access(const HostAccessRecord&, std::span<const Operand>) noexcept {}
  virtual void on_order(const OrderRecord&) noexcept {}
  virtual void on_memory(const MemoryRecord&) noexcept {}
  // The command with this promise has come to its end, in virtual time.
  virtual void on_kept(const Promise*, std::int64_t /*start_ns*/,
                       std::int64_t /*end_ns*/) noexcept {}
  // Whether the record of a free is wanted with its site, which costs more than the rest of it.
  virtual bool wants_site_of_free(Address) noexcept { return false; }
  // Called by the thread of a command or of a host access when it is over, without any lock. Its
  // exception reaches the caller of the command.
  virtual void after_command() {}

 protected:
  ~Observer() = default;
};

// attach() and detach() begin and end a watch. An observer may be called for a moment after
// detach() has returned, so it lives as long as the process. At most eight; attaching one twice
// does nothing. attach() throws InvalidArgument where there is no room, and in a forked child.
void attach(Observer& observer);
void detach(Observer& observer) noexcept;

// The gatherer returns the site (line of the program) of the calling thread. It is called before a
// command, an allocation or a free, without any lock of backend/; nullptr: none. At a free it must
// not wait (may_wait is false), because the freeing thread may hold locks.
using SiteGatherer = Site (*)(bool may_wait) noexcept;
void set_site_gatherer(SiteGatherer gatherer) noexcept;

// set_correlation() gives the later commands of this thread a number of the caller's choice.
void set_correlation(std::uint64_t correlation) noexcept;

// note_operand() adds an operand to the command whose body this thread runs; sizes and strides are
// copied. Elsewhere it does nothing. note_range() is the same for plain bytes.
void note_operand(const Operand& operand);
void note_range(const void* first, std::size_t bytes, bool written);

// OperandScope describes the operands of the copies that this thread launches while it lives, which
// are otherwise known as plain bytes.
class OperandScope {
 public:
  OperandScope() noexcept;
  ~OperandScope();
  void add(const Operand& operand);
  OperandScope(const OperandScope&) = delete;
  OperandScope& operator=(const OperandScope&) = delete;
};

// note_host_access() reports that the host itself reads or writes. Observers may object: the caller
// then calls settle_host_access() at a place where it can throw. With `as_of`, an earlier answer of
// newest_record(), the access is one to what had been given by then; waits since count.
std::uint64_t newest_record() noexcept;
void note_host_access(const char* name, const Operand& operand, std::uint64_t as_of = 0);
void settle_host_access();

// note_memory() is called by the allocators of devices and of pinned memory; null pointers are
// ignored. note_order() reports marks and waits, note_kept() the end of a promised command.
void note_memory(MemoryKind kind, const void* address, std::size_t bytes, const Stream* stream,
                 std::uint64_t pool = 0) noexcept;
void note_order(OrderKind kind, int device, const Stream* stream, const Event* event = nullptr,
                std::uint64_t version = 0, std::int64_t time_ns = 0) noexcept;
void note_kept(const Promise* promise, std::int64_t start_ns, std::int64_t end_ns) noexcept;

}  // namespace npusim
