// SPDX-License-Identifier: BSD-3-Clause
// Records of observers: commands with their times and operands, marks and waits, memory; in one
// order, from several threads too.
#include <algorithm>
#include <string>
#include <thread>

#include "tests/native/backend_watched_program.h"

using namespace npusim;

namespace {

struct Heard {
  std::string what;
  std::uint64_t sequence = 0;
  std::int64_t stream = -1;
  std::int64_t host_ns = 0, start_ns = 0, end_ns = 0;
  std::vector<Address> operands = {};
  std::uint64_t correlation = 0;
  Site site = 0;
};

// Everything, in words. The records are read after detach() only.
class Listener final : public Observer {
 public:
  void on_command(const CommandRecord& record,
                  std::span<const Operand> operands) noexcept override {
    Heard heard{record.info.name,
                record.sequence,
                record.stream.id(),
                record.host_ns,
                record.start_ns,
                record.end_ns,
                {},
                record.correlation,
                record.site};
    for (const Operand& operand : operands) heard.operands.push_back(operand.first);
    all.push_back(heard);
  }
  void on_host_access(const HostAccessRecord& record,
                      std::span<const Operand> operands) noexcept override {
    all.push_back({record.name, record.sequence, -1, 0, 0, 0, {operands[0].first}, 0, record.site});
  }
  void on_order(const OrderRecord& record) noexcept override {
    static constexpr const char* kWords[] = {"record", "block",  "event wait",     "event end",
                                             "wait",   "device", "allocator waits"};
    all.push_back({kWords[static_cast<std::size_t>(record.kind)], record.sequence,
                   record.stream == nullptr ? -1 : record.stream->id()});
  }
  void on_memory(const MemoryRecord& record) noexcept override {
    static constexpr const char* kWords[] = {"allocate", "free", "use", "pin", "unpin"};
    all.push_back({kWords[static_cast<std::size_t>(record.kind)], record.sequence});
  }
  void after_command() override {
    if (throws) throw std::runtime_error("seen");
  }
  std::vector<Heard> all;
  bool throws = false;
};

Listener& listener() {
  static auto* made = new Listener;  // observers live as long as the process
  return *made;
}

struct Listening {
  Listening() {
    initialize();
    for (const int device : {0, 1}) synchronize_device(device);
    listener().all.clear();
    attach(listener());
  }
  ~Listening() { detach(listener()); }
  std::string words() const {
    std::string out;
    for (const Heard& heard : listener().all) out += heard.what + "; ";
    return out;
  }
};

CommandInfo kernel(const char* name, std::int64_t duration) {
  return {name, CommandKind::kernel, {0, 1000.0 * static_cast<double>(duration - 2000)}};
}

}  // namespace

TEST(a_command_is_heard_with_its_times_and_operands) {  // (rules V1, C3)
  Listening watch;
  Stream& stream = default_stream(0);
  const std::int64_t launched = host_now_ns() + stream.rates().launch_latency_ns;
  set_correlation(42);
  submit(stream, kernel("first", 50'000), [] {
    note_range(Watched::as_pointer(Watched::address(64)), 16, true);
    note_range(Watched::as_pointer(Watched::address(128)), 16, false);
  });
  set_correlation(0);
  const int answer = run_now(stream, kernel("second", 10'000), [] { return 7; });
  CHECK_EQ(answer, 7);
  CHECK_EQ(watch.words(), "first; second; ");
  const Heard& first = listener().all[0];
  CHECK_EQ(first.host_ns, launched);
  CHECK_EQ(first.start_ns, launched);
  CHECK_EQ(first.end_ns, launched + 50'000);
  CHECK_EQ(first.correlation, 42);
  CHECK(first.operands == (std::vector<Address>{Watched::address(64), Watched::address(128)}));
  const Heard& second = listener().all[1];
  CHECK_EQ(second.start_ns, first.end_ns);  // they queue
  CHECK_EQ(second.end_ns, stream.done_at_ns());
  CHECK(second.operands.empty());
  CHECK_EQ(second.correlation, 0);
  CHECK_EQ(second.sequence, first.sequence + 1);
}

TEST(a_command_within_a_command_is_part_of_it) {  // (rules V1, S4)
  Listening watch;
  Stream& stream = default_stream(0);
  submit(stream, kernel("outer", 10'000), [&] {
    submit(stream, kernel("inner", 10'000),
           [] { note_range(Watched::as_pointer(Watched::address(64)), 16, true); });
  });
  CHECK_EQ(watch.words(), "outer; ");
  CHECK_EQ(listener().all[0].operands.size(), 1);
}

TEST(marks_waits_and_memory_are_heard_in_order) {  // (rule V1)
  Listening watch;
  Stream& stream = default_stream(0);
  {
    Event event(0);
    event.block(stream);  // never recorded: no order
    event.synchronize();
    event.record(stream);
    event.block(next_stream(0, 0));
    event.synchronize();
    stream.synchronize();
    synchronize_device(0);
  }
  note_memory(MemoryKind::allocate, Watched::as_pointer(Watched::address(0)), 64, &stream);
  note_memory(MemoryKind::free, Watched::as_pointer(Watched::address(0)), 64, nullptr);
  note_memory(MemoryKind::free, nullptr, 0, nullptr);
  CHECK_EQ(watch.words(), "record; block; event wait; wait; device; event end; allocate; free; ");
}

TEST(a_body_that_throws_was_heard_all_the_same) {  // (rules V1, C6)
  Listening watch;
  Stream& stream = default_stream(0);
  CHECK_THROWS(submit(stream, kernel("broken", 10'000),
                      [] {
                        note_range(Watched::as_pointer(Watched::address(64)), 16, true);
                        throw std::logic_error("x");
                      }),
               std::logic_error);
  submit(stream, kernel("next", 10'000), [] {});
  CHECK_EQ(watch.words(), "broken; next; ");
  CHECK_EQ(listener().all[0].operands.size(), 1);
  CHECK(listener().all[1].operands.empty());
}

TEST(an_observer_may_throw_when_the_command_is_over) {  // (rule V3)
  Listening watch;
  Stream& stream = default_stream(0);
  listener().throws = true;
  CHECK_THROWS(submit(stream, kernel("first", 10'000), [] {}), std::runtime_error);
  CHECK_THROWS(run_now(stream, kernel("second", 10'000), [] { return 1; }), std::runtime_error);
  listener().throws = false;
  submit(stream, kernel("third", 10'000), [] {});  // the stream is usable
  CHECK_EQ(watch.words(), "first; second; third; ");
}

TEST(a_copy_has_two_operands_and_a_site) {  // (rule V1)
  Listening watch;
  set_site_gatherer(+[](bool) noexcept -> Site { return 99; });
  Stream& stream = default_stream(0);
  const SegmentResult segment = acquire_segment(0, 4096);
  void* pinned = pinned_allocate(64);
  copy(reinterpret_cast<void*>(segment.address), pinned, 64, stream, /*blocking=*/false);
  char pageable[64] = {};
  copy(pageable, reinterpret_cast<void*>(segment.address), 64, stream, /*blocking=*/false);
  set_site_gatherer(nullptr);
  CHECK_EQ(watch.words(), "copy_h2d; copy_d2h; wait; ");
  const Heard& up = listener().all[0];
  CHECK(up.operands == (std::vector<Address>{reinterpret_cast<Address>(pinned), segment.address}));
  CHECK_EQ(up.site, 99);
  CHECK_EQ(listener().all[1].operands.size(), 1);  // no command works on pageable memory later
  pinned_free(pinned);
  release_segment(0, segment.address, 4096);
}

TEST(nothing_is_heard_after_detach) {  // (rule V2)
  {
    Listening watch;
  }
  submit(default_stream(0), kernel("unheard", 10'000), [] {});
  CHECK(listener().all.empty());
  CHECK(!observed());
}

TEST(threads_are_heard_in_one_order_with_exact_times) {  // (rule V3)
  Listening watch;
  constexpr int kThreads = 4, kCommands = 500;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([t] {
        Stream& stream = stream_from_id(t % 2, t < 2 ? 0 : 3);  // two threads share none
        Stream& shared = stream_from_id(0, 5);
        Event event(stream.device());
        for (int i = 0; i < kCommands; ++i) {
          submit(i % 3 == 0 ? shared : stream, kernel("work", 3000), [i] {
            note_range(Watched::as_pointer(Watched::address(64 * static_cast<unsigned>(i))), 16,
                       true);
          });
          if (i % 5 == 0) event.record(stream);
          if (i % 7 == 0) event.block(shared);
        }
      });
    }
  }
  std::vector<Heard> heard = listener().all;
  CHECK_EQ(std::ranges::count(heard, "work", &Heard::what), kThreads * kCommands);
  for (std::size_t i = 1; i < heard.size(); ++i) {
    CHECK_EQ(heard[i].sequence, heard[i - 1].sequence + 1);
  }
  // Of one stream each starts when the one before it has ended, or later (rule S1).
  std::int64_t end_ns = 0;
  for (const Heard& one : heard) {
    if (one.what != "work" || one.stream != 5) continue;
    CHECK(one.start_ns >= end_ns);
    CHECK_EQ(one.end_ns - one.start_ns, 3000);
    CHECK_EQ(one.operands.size(), 1);
    end_ns = one.end_ns;
  }
}

TEST(races_of_several_threads_are_found_without_a_data_race_of_our_own) {  // (rule V3)
  Watched program;
  Stream& main = default_stream(0);
  for (unsigned i = 0; i < 8; ++i) program.allocate(Watched::address(4096 * i), 4096, main);
  std::size_t found = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t, &program] {
        Stream& stream = stream_from_id(0, 10 + t);
        for (unsigned i = 0; i < 400; ++i) {
          program.write(stream, Watched::address(4096 * (i % 8)));
          if (i % 16 == 0) stream.synchronize();
        }
      });
    }
    for (int i = 0; i < 100; ++i) found += program.races().size();
  }
  found += program.races().size();
  CHECK(found > 0);
}
