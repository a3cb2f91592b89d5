// SPDX-License-Identifier: BSD-3-Clause
// The handler runs between fork() and the child's first instruction: it only sets atomics.
#include "backend/process.h"

#include <pthread.h>

#include <atomic>

#include "backend/error.h"
#include "backend/slow_path.h"

namespace npusim {

namespace {

constinit std::atomic<bool> g_bad_fork{false};

void in_child() {
  g_bad_fork.store(true);
  detail::set_slow_path(detail::kBadFork);
}

}  // namespace

bool in_bad_fork() noexcept { return g_bad_fork.load(std::memory_order_relaxed); }

void check_not_forked() {
  NPUSIM_CHECK(!in_bad_fork(),
               "Cannot re-initialize npusim in forked subprocess. To use npusim with "
               "multiprocessing, you must use the 'spawn' start method");
}

void detail::install_fork_handler() { pthread_atfork(nullptr, nullptr, in_child); }

}  // namespace npusim
