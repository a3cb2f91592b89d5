// SPDX-License-Identifier: BSD-3-Clause
// What a command does for the observers (observer.h): as much as the header of every command needs.
// Invariant: nothing unless somebody observes.
#pragma once

#include <cstdint>

#include "backend/running_command.h"
#include "backend/slow_path.h"

namespace npusim {

// observed() is whether an observer is attached.
inline bool observed() noexcept { return detail::takes_slow_path(detail::kObserved); }

// A site is a number by which an observer's owner finds where a program was; 0: not known.
using Site = std::uint64_t;

namespace detail {

// gather_site() asks the gatherer (set_site_gatherer()), or answers for the command whose body this
// thread runs. Call it without any lock.
Site gather_site(bool may_wait = true) noexcept;

// ObservedCommand is a command's record in the making: built before the body under the stream's
// lock, handed over when the body is done, under it too. Does nothing without observers.
class ObservedCommand {
 public:
  ObservedCommand(const RunningCommand& run, const Stream& stream, const CommandInfo& info,
                  Site site) noexcept;
  ~ObservedCommand();
  ObservedCommand(const ObservedCommand&) = delete;
  ObservedCommand& operator=(const ObservedCommand&) = delete;

 private:
  const bool active_;
  const RunningCommand& run_;
  const Stream& stream_;
  const CommandInfo& info_;
  const Site site_;
};

}  // namespace detail

}  // namespace npusim
