// SPDX-License-Identifier: BSD-3-Clause
// The handlers run between fork() and the child's first instruction: they only set atomics.
#include "backend/process.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>

#include "backend/attention.h"
#include "backend/error.h"

namespace npusim {

namespace {

constinit std::atomic<bool> g_bad_fork{false};
constinit std::atomic<bool> g_exiting{false};

void in_child() {
  g_bad_fork.store(true);
  detail::set_attention(detail::kBadFork);
}

}  // namespace

bool in_bad_fork() noexcept { return g_bad_fork.load(std::memory_order_relaxed); }

void check_not_forked() {
  NPUSIM_CHECK(!in_bad_fork(),
               "Cannot re-initialize npusim in forked subprocess. To use npusim with "
               "multiprocessing, you must use the 'spawn' start method");
}

bool process_is_exiting() noexcept { return g_exiting.load(std::memory_order_relaxed); }

void mark_process_exiting() noexcept { g_exiting.store(true); }

void detail::install_process_handlers() {
  pthread_atfork(nullptr, nullptr, in_child);
  std::atexit([] { mark_process_exiting(); });
}

}  // namespace npusim
