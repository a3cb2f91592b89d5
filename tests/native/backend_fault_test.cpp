// SPDX-License-Identifier: BSD-3-Clause
// Injected faults: where they surface, how long they stick, that everything works afterwards.
#include <string>
#include <vector>

#include "backend/backend.h"
#include "tests/native/check.h"

using namespace npusim;

namespace {

// Initialized devices without faults, before and after.
struct Machine {
  Machine() {
    initialize();
    clear_faults();
    for (const int device : {0, 1}) synchronize_device(device);
  }
  ~Machine() {
    clear_faults();
    set_launch_blocking(false);
  }
};

bool launch(Stream& stream, const char* name = "add") {
  bool ran = false;
  submit(stream, {name}, [&] { ran = true; });
  return ran;
}

template <class Call>
std::string fault_of(Call&& call) {
  try {
    call();
  } catch (const DeviceFault& fault) {
    return fault.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(a_launch_failure_surfaces_at_the_next_synchronising_call_once) {  // (rules F1, F3)
  Machine machine;
  Stream& stream = next_stream(0, 0);
  inject_fault({.kind = FaultKind::launch, .at = 2});
  CHECK(launch(stream));
  CHECK(!launch(stream, "mul"));  // the body does not run, and nothing is raised yet
  CHECK(launch(stream));
  const std::string text = fault_of([&] { stream.synchronize(); });
  CHECK(contains(text, "launch failure: `mul` on stream " + std::to_string(stream.id())));
  CHECK(contains(text, "of device 0") && contains(text, "NPUSIM_LAUNCH_BLOCKING=1"));
  stream.synchronize();  // reported: gone
  CHECK(launch(stream));
  CHECK_EQ(fault_counts().injected[1], 1);
  CHECK_EQ(fault_counts().reported, 1);
}

TEST(every_synchronising_call_reports) {  // (rule F3)
  Machine machine;
  Stream& stream = default_stream(0);
  Event event(0);
  const SegmentResult segment = acquire_segment(0, 4096);
  char host[8];
  void* const memory = reinterpret_cast<void*>(segment.address);
  event.record(stream);
  const auto fail = [&] {
    inject_fault({.kind = FaultKind::launch, .at = 1});
    launch(stream);
  };
  fail();
  CHECK_THROWS(stream.synchronize(), DeviceFault);
  fail();
  CHECK_THROWS(synchronize_device(0), DeviceFault);
  fail();
  CHECK_THROWS(event.synchronize(), DeviceFault);
  fail();
  CHECK_THROWS(copy(host, memory, sizeof host, stream, true), DeviceFault);
  fail();
  CHECK_THROWS(copy(memory, host, sizeof host, stream, true), DeviceFault);
  fail();
  CHECK_THROWS(while (!stream.query()){}, DeviceFault);
  fail();
  synchronize_device(1);                // another device knows nothing of it
  wait_until_ns(device_done_at_ns(0));  // nor does the allocator's wait
  CHECK_THROWS(next_stream(0, 0).synchronize(), DeviceFault);
  release_segment(0, segment.address, 4096);
}

TEST(launch_blocking_reports_at_the_call) {  // (rule F6)
  Machine machine;
  Stream& stream = default_stream(0);
  set_launch_blocking(true);
  inject_fault({.kind = FaultKind::launch, .at = 1});
  CHECK(contains(fault_of([&] { launch(stream, "conv"); }), "`conv`"));
  CHECK(launch(stream));
  inject_fault({.kind = FaultKind::launch, .at = 1});
  CHECK_THROWS(run_now(stream, {"sum"}, [] { return 1; }), DeviceFault);
}

TEST(run_now_returns_its_result_in_spite_of_a_fault) {  // (rule F3)
  Machine machine;
  Stream& stream = default_stream(0);
  inject_fault({.kind = FaultKind::launch, .at = 1});
  CHECK_EQ(run_now(stream, {"sum"}, [] { return 42; }), 42);
  CHECK_THROWS(stream.synchronize(), DeviceFault);
}

TEST(a_hang_costs_the_watchdog_and_reports_once) {  // (rule F4)
  Machine machine;
  Stream& stream = default_stream(0);
  inject_fault({.kind = FaultKind::hang, .at = 1});
  const std::int64_t start = host_now_ns();
  CHECK(!launch(stream, "spin"));
  CHECK(!stream.query());
  CHECK(contains(fault_of([&] { stream.synchronize(); }), "did not finish: `spin`"));
  CHECK(host_now_ns() >= start + kWatchdogNs);
  CHECK(launch(stream));
  stream.synchronize();
}

TEST(a_lost_device_stays_lost_until_cleared) {  // (rule F5)
  Machine machine;
  Stream& stream = default_stream(0);
  inject_fault({.kind = FaultKind::device, .at = 1});
  launch(stream);
  CHECK(launch(stream));  // not known yet
  CHECK_THROWS(stream.synchronize(), DeviceFault);
  CHECK_THROWS(stream.synchronize(), DeviceFault);
  CHECK_THROWS(launch(stream), DeviceFault);
  CHECK_EQ(acquire_segment(0, 4096).status, SegmentResult::Status::injected);
  CHECK(launch(default_stream(1)));
  clear_faults();
  CHECK(launch(stream));
  stream.synchronize();
}

TEST(the_first_fault_is_the_one_that_is_told) {  // (rule F7)
  Machine machine;
  Stream& stream = default_stream(0);
  inject_fault({.kind = FaultKind::launch, .every = 1});
  launch(stream, "first");
  launch(stream, "second");
  CHECK(contains(fault_of([&] { synchronize_device(0); }), "`first`"));
  synchronize_device(0);
  CHECK_EQ(fault_counts().injected[1], 2);
}

TEST(oom_fails_the_chosen_acquisition_only) {  // (rule F2)
  Machine machine;
  inject_fault({.kind = FaultKind::oom, .at = 2, .device = 1});
  const SegmentResult a = acquire_segment(1, 4096);
  const SegmentResult other = acquire_segment(0, 4096);
  const SegmentResult b = acquire_segment(1, 4096);
  const SegmentResult c = acquire_segment(1, 4096);
  CHECK_EQ(a.status, SegmentResult::Status::ok);
  CHECK_EQ(b.status, SegmentResult::Status::injected);
  CHECK(contains(b.reason, "injected"));
  CHECK_EQ(c.status, SegmentResult::Status::ok);
  release_segment(0, other.address, 4096);
  release_segment(1, a.address, 4096);
  release_segment(1, c.address, 4096);
}

TEST(a_fault_may_choose_device_name_and_period) {  // (rule F1)
  Machine machine;
  inject_fault({.kind = FaultKind::launch, .every = 3, .device = 1, .name = "conv"});
  int failed = 0;
  for (int i = 0; i < 9; ++i) {
    CHECK(launch(default_stream(0), "conv2d"));
    CHECK(launch(default_stream(1), "add"));
    failed += !launch(default_stream(1), "conv2d");
  }
  CHECK_EQ(failed, 3);
}

TEST(probability_is_reproducible_by_seed) {  // (rule F1)
  Machine machine;
  const auto draw = [&](std::uint64_t seed) {
    clear_faults();
    inject_fault({.kind = FaultKind::launch, .probability = 0.25, .seed = seed});
    std::vector<bool> ran;
    for (int i = 0; i < 2000; ++i) ran.push_back(launch(default_stream(0)));
    return ran;
  };
  const std::vector<bool> one = draw(7);
  CHECK(one == draw(7));
  CHECK(one != draw(8));
  const auto failed = std::count(one.begin(), one.end(), false);
  CHECK(failed > 400 && failed < 600);
}

TEST(failing_every_call_in_turn_leaves_the_device_usable) {  // (rule F1)
  Machine machine;
  for (std::uint64_t k = 1; k <= 6; ++k) {
    inject_fault({.kind = FaultKind::launch, .at = k});
    int ran = 0;
    for (int i = 0; i < 6; ++i) ran += launch(default_stream(0));
    CHECK_EQ(ran, 5);
    CHECK_THROWS(synchronize_device(0), DeviceFault);
    synchronize_device(0);
  }
  CHECK_EQ(fault_counts().reported, 6);
}

TEST(nested_commands_are_not_counted) {  // (rules S4, F1)
  Machine machine;
  inject_fault({.kind = FaultKind::launch, .at = 2});
  bool inner = false;
  submit(default_stream(0), {"outer"}, [&] { inner = launch(default_stream(0)); });
  CHECK(inner);
  CHECK(!launch(default_stream(0)));
}

TEST(a_script_says_the_same_as_rules) {
  const std::vector<Fault> rules =
      parse_fault_script("launch@3; oom%10:device=1 ;device~0.001:seed=7:name=conv;;");
  CHECK_EQ(rules.size(), 3);
  CHECK(rules[0].kind == FaultKind::launch && rules[0].at == 3 && rules[0].device == -1);
  CHECK(rules[1].kind == FaultKind::oom && rules[1].every == 10 && rules[1].device == 1);
  CHECK(rules[2].kind == FaultKind::device && rules[2].probability == 0.001);
  CHECK(rules[2].seed == 7 && rules[2].name == "conv");
  CHECK(parse_fault_script("").empty());
}

TEST(a_wrong_fault_is_named) {
  Machine machine;
  for (const char* script :
       {"launch", "launch@", "launch@0", "launch@x", "launch~2", "launch~-1", "launch%1:speed=3",
        "launch%1:device=x", "melt@1", "@1", "oom@1:name=add", "launch@1:", "launch~nan"}) {
    CHECK_THROWS(parse_fault_script(script), InvalidArgument);
  }
  CHECK_THROWS(inject_fault({.kind = FaultKind::launch, .at = 1, .every = 1}), InvalidArgument);
  CHECK_THROWS(inject_fault({.kind = FaultKind::launch, .at = 1, .device = 64}), InvalidArgument);
}

TEST(a_slow_fault_stretches_kernels_and_leaves_communication) {  // (rule F8)
  Machine machine;
  Stream& stream = next_stream(0, 0);
  const auto took = [&](CommandKind kind) {
    const std::int64_t before = std::max(stream.done_at_ns(), host_now_ns());
    submit(stream, {"add", kind, {.flops = 1e9}}, [] {});
    return stream.done_at_ns() - std::max(before, host_now_ns());
  };
  const std::int64_t usual_ns = took(CommandKind::kernel);
  inject_fault({.kind = FaultKind::slow, .every = 1, .factor = 3});
  CHECK_EQ(took(CommandKind::kernel), 3 * usual_ns);
  double divided = 0;
  const auto communicate = [&](const char* name) {
    run_now(stream, {name, CommandKind::collective},
            [&] { divided = detail::t_state.run->fault().slowdown; });
  };
  communicate("simccl::all_reduce");
  CHECK_EQ(divided, 1);
  inject_fault({.kind = FaultKind::link, .every = 2, .factor = 4});
  communicate("simccl::all_reduce");
  CHECK_EQ(divided, 1);
  communicate("simccl::all_reduce");
  CHECK_EQ(divided, 4);
  CHECK(fault_of([&] { stream.synchronize(); }).empty());  // nothing failed
}

TEST(a_rule_of_a_rank_holds_for_it_alone) {  // (rule F1)
  Machine machine;
  Stream& stream = default_stream(0);
  inject_fault({.kind = FaultKind::launch, .every = 1, .rank = 3});
  CHECK(launch(stream));
  set_rank(2);
  CHECK(launch(stream));
  set_rank(3);
  CHECK(!launch(stream));
  set_thread_rank(1);  // this thread is another one
  CHECK(launch(stream));
  set_thread_rank(-1);
  set_rank(-1);
  CHECK(!fault_of([&] { stream.synchronize(); }).empty());
}

TEST(rules_of_ranks_are_read_and_checked) {
  const std::vector<Fault> rules =
      parse_fault_script("slow~0.1:factor=2.5:rank=1; kill@7:rank=0:name=simccl");
  CHECK_EQ(rules.size(), std::size_t{2});
  CHECK(rules[0].kind == FaultKind::slow && rules[0].factor == 2.5 && rules[0].rank == 1);
  CHECK(rules[1].kind == FaultKind::kill && rules[1].at == 7 && rules[1].rank == 0);
  CHECK_THROWS(parse_fault_script("slow%1"), InvalidArgument);
  CHECK_THROWS(parse_fault_script("slow%1:factor=0.5"), InvalidArgument);
  CHECK_THROWS(parse_fault_script("hang@1:factor=2"), InvalidArgument);
  CHECK_THROWS(parse_fault_script("kill@1:rank=-2"), InvalidArgument);
}
