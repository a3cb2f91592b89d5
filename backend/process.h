// SPDX-License-Identifier: BSD-3-Clause
// Fork and exit rules (P1-P4): a child forked after initialize() cannot use the parent's device.
// Invariant: nothing here takes a lock, so the child never meets a lock that a thread of the parent
// held.
#pragma once

namespace npusim {

// in_bad_fork() is true in a child that was forked after initialize().
bool in_bad_fork() noexcept;

// check_not_forked() throws InvalidArgument in such a child, with the remedy ('spawn').
void check_not_forked();

// process_is_exiting() is true once exit() began; destructors then leave the device alone.
bool process_is_exiting() noexcept;

// mark_process_exiting() says so earlier (Python's atexit runs before exit()).
void mark_process_exiting() noexcept;

namespace detail {
void install_process_handlers();  // once, by initialize()
}

}  // namespace npusim
