// SPDX-License-Identifier: BSD-3-Clause
// The fork rules (P1-P3): a child forked after initialize() cannot use the parent's device.
// Invariant: nothing here takes a lock, so the child never meets a lock that a thread of the parent
// held.
#pragma once

namespace npusim {

// in_bad_fork() is true in a child that was forked after initialize().
bool in_bad_fork() noexcept;

// check_not_forked() throws InvalidArgument in such a child, with the remedy ('spawn').
void check_not_forked();

namespace detail {
void install_fork_handler();  // once, by initialize()
}

}  // namespace npusim
