// SPDX-License-Identifier: BSD-3-Clause
// Ends and limits of processes: isolation, fork, small address spaces, sandboxes.
// Every test runs in a child; the parent never touches a device.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backend/backend.h"
#include "tests/native/backend_child.h"
#include "tests/native/check.h"

using namespace npusim;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

volatile char* device_bytes() {
  initialize();
  return reinterpret_cast<char*>(acquire_segment(0, 4096).address);
}

void limit(int resource, std::size_t bytes) {
  const rlimit value{bytes, bytes};
  CHECK_EQ(setrlimit(static_cast<__rlimit_resource>(resource), &value), 0);
}

std::size_t address_space_in_use() {
  std::size_t pages = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  CHECK(std::fscanf(file, "%zu", &pages) == 1);
  std::fclose(file);
  return pages * 4096;
}

std::string message_of(void (*call)()) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Sanitizers reserve terabytes of addresses themselves, so limits on them mean nothing there.
constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

}  // namespace

TEST(host_code_that_reads_device_memory_faults) {  // (rule M2)
  CHECK(child::died(child::run([] { (void)device_bytes()[0]; }), SIGSEGV));
}

TEST(host_code_that_writes_device_memory_faults) {  // (rule M2)
  CHECK(child::died(child::run([] { device_bytes()[0] = 1; }), SIGSEGV));
}

TEST(a_kernel_that_runs_beyond_its_segment_faults) {  // (rule M2)
  CHECK(child::died(child::run([] {
                      volatile char* alias =
                          static_cast<char*>(kernel_alias(const_cast<char*>(device_bytes())));
                      alias[4095] = 1;
                      alias[4096] = 1;
                    }),
                    SIGSEGV));
}

TEST(isolation_off_lets_the_host_in) {  // (rule M2)
  CHECK(child::exited(child::run([] {
    setenv("NPUSIM_ISOLATION", "0", 1);
    volatile char* memory = device_bytes();
    CHECK_EQ(memory[0], 0);
    memory[0] = 7;
    CHECK(kernel_alias(const_cast<char*>(memory)) == memory);
    CHECK_EQ(device_of(const_cast<char*>(memory)), 0);
    CHECK(memory_backing().rfind("single mapping (no isolation): NPUSIM_ISOLATION=0", 0) == 0);
  })));
}

TEST(a_child_of_an_initialized_process_is_refused_everywhere) {  // (rules P1, P2)
  CHECK(child::exited(child::run([] {
    volatile char* memory = device_bytes();
    static Event event(0);
    static void* pinned = pinned_allocate(100);
    static Stream& stream = default_stream(0);
    CHECK(child::exited(child::run([&] {
      CHECK(in_bad_fork());
      CHECK_EQ(device_count(), 2);
      CHECK_EQ(message_of([] { initialize(); }),
               "Cannot re-initialize npusim in forked subprocess. To use npusim with "
               "multiprocessing, you must use the 'spawn' start method");
      CHECK_THROWS(set_device(0), InvalidArgument);
      CHECK_THROWS(device_spec(0), InvalidArgument);
      CHECK_THROWS(acquire_segment(0, 4096), InvalidArgument);
      CHECK_THROWS(memory_info(0), InvalidArgument);
      CHECK_THROWS(pinned_allocate(1), InvalidArgument);
      CHECK_THROWS(default_stream(0), InvalidArgument);
      CHECK_THROWS(stream.synchronize(), InvalidArgument);
      CHECK_THROWS(stream.query(), InvalidArgument);
      CHECK_THROWS(synchronize_device(0), InvalidArgument);
      CHECK_THROWS(submit(stream, {"add"}, [] {}), InvalidArgument);
      CHECK_THROWS(run_now(stream, {"add"}, [] {}), InvalidArgument);
      CHECK_THROWS(event.record(stream), InvalidArgument);
      CHECK_THROWS(event.query(), InvalidArgument);
      CHECK_THROWS(Event(0), InvalidArgument);
      CHECK_THROWS(clear_faults(), InvalidArgument);
      CHECK_THROWS(copy(&stream, const_cast<char*>(memory), 1, stream, false), InvalidArgument);
      release_segment(0, reinterpret_cast<Address>(memory), 4096);  // no-ops
      pinned_free(pinned);
      CHECK(!is_pinned(pinned));
    })));
    // The parent's segment, stream and locks are as before.
    CHECK(!in_bad_fork());
    CHECK_EQ(memory_info(0).free_bytes, memory_info(0).total_bytes - 4096);
    submit(stream, {"add"}, [] {});
    CHECK(is_pinned(pinned));
  })));
}

TEST(the_child_does_not_inherit_device_memory) {  // (rule P2)
  CHECK(child::exited(child::run([] {
    volatile char* alias = static_cast<char*>(kernel_alias(const_cast<char*>(device_bytes())));
    alias[0] = 5;
    CHECK(child::died(child::run([&] { alias[0] = 6; }), SIGSEGV));
    CHECK_EQ(alias[0], 5);
  })));
}

TEST(a_fork_before_initialize_is_harmless) {  // (rule P3)
  CHECK(child::exited(child::run([] {
    CHECK_EQ(device_count(), 2);  // reads the configuration only
    CHECK(child::exited(child::run([] {
      CHECK(!in_bad_fork());
      initialize();
      CHECK_EQ(acquire_segment(1, 4096).status, SegmentResult::Status::ok);
    })));
    initialize();
  })));
}

TEST(destructors_at_exit_may_free) {  // (rule P4)
  CHECK(child::exited(child::run([] {
                        static struct AtExit {
                          Address address = 0;
                          ~AtExit() {
                            release_segment(0, address, 4096);
                            const MemoryInfo left = memory_info(0);
                            _exit(left.free_bytes == left.total_bytes ? 42 : 1);
                          }
                        } at_exit;
                        initialize();  // after the object: what it registers for exit runs before
                        at_exit.address = acquire_segment(0, 4096).address;
                        CHECK(memory_info(0).free_bytes < memory_info(0).total_bytes);
                        std::exit(0);
                      }),
                      42));
}

TEST(a_limited_address_space_makes_smaller_reservations) {  // (rule M7)
  if (kSanitized) return;
  CHECK(child::exited(child::run([] {
    setenv("NPUSIM_DEVICE_MEMORY", "256MiB", 1);
    limit(RLIMIT_AS, address_space_in_use() + 2048 * kMiB);
    initialize();
    CHECK(memory_backing().rfind("anonymous memory, isolated", 0) == 0);
    CHECK_EQ(acquire_segment(1, 256 * kMiB).status, SegmentResult::Status::ok);
    CHECK(std::malloc(256 * kMiB) != nullptr);  // the process keeps room of its own
  })));
}

TEST(without_room_for_two_views_one_is_used_with_a_warning) {  // (rule M7)
  if (kSanitized) return;
  CHECK(child::exited(child::run([] {
    setenv("NPUSIM_DEVICE_MEMORY", "256MiB", 1);
    limit(RLIMIT_AS, address_space_in_use() + 900 * kMiB);
    initialize();
    CHECK_EQ(memory_backing(),
             "single mapping (no isolation): the address space has no room for two views");
    CHECK_EQ(acquire_segment(0, 256 * kMiB).status, SegmentResult::Status::ok);
  })));
}

TEST(too_small_an_address_space_is_a_clear_error) {  // (rule M7)
  if (kSanitized) return;
  CHECK(child::exited(child::run([] {
    limit(RLIMIT_AS, address_space_in_use() + 4096 * kMiB);
    const std::string message = message_of([] { initialize(); });
    CHECK(message.find("2 device(s) of 16.00 GiB each (ulimit -v leaves 4.") != std::string::npos);
    CHECK(message.find("Lower NPUSIM_DEVICE_MEMORY") != std::string::npos);
    CHECK(!initialized());
    CHECK_THROWS(initialize(), OutOfMemory);  // again, not half-initialized
  })));
}

TEST(a_refused_commitment_is_ram_full) {  // (rule M5)
  if (kSanitized) return;
  CHECK(child::exited(child::run([] {
    initialize();
    limit(RLIMIT_DATA, 64 * kMiB);
    const SegmentResult segment = acquire_segment(0, 512 * kMiB);
    CHECK_EQ(segment.status, SegmentResult::Status::ram_full);
    CHECK(segment.reason.find("ulimit -d") != std::string::npos);
    CHECK_EQ(memory_info(0).free_bytes, memory_info(0).total_bytes);
    CHECK_EQ(acquire_segment(0, 4096).status, SegmentResult::Status::ok);
  })));
}

TEST(a_sandbox_without_memfd_and_file_creation_is_enough) {  // (rule M7)
  CHECK(child::exited(child::run([] {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ftruncate, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{sizeof program / sizeof *program, program};
    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    CHECK(syscall(SYS_memfd_create, "x", 0) == -1 && errno == EPERM);
    initialize();
    CHECK(memory_backing().rfind("anonymous memory, isolated", 0) == 0);
    CHECK_EQ(acquire_segment(0, kMiB).status, SegmentResult::Status::ok);
  })));
}

TEST(faults_of_the_environment_are_armed_from_the_start) {  // (rule F1)
  CHECK(child::exited(child::run([] {
    setenv("NPUSIM_FAULT", "oom@1", 1);
    setenv("NPUSIM_LAUNCH_BLOCKING", "1", 1);
    initialize();
    CHECK_EQ(acquire_segment(0, 4096).status, SegmentResult::Status::injected);
    Stream& stream = default_stream(0);
    submit(stream, {"add"}, [] {});
    CHECK(host_now_ns() >= stream.done_at_ns());
  })));
}
