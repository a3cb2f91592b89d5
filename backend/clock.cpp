// SPDX-License-Identifier: BSD-3-Clause
// The waiting side of the host clock.
#include "backend/clock.h"

#include "backend/error.h"
#include "backend/observer.h"

namespace npusim {

void wait_until_ns(std::int64_t time_ns) noexcept {
  std::int64_t now_ns = host_now_ns();
  while (now_ns < time_ns && !detail::g_host_ns.compare_exchange_weak(now_ns, time_ns)) {
  }
}

void advance_host_ns(std::int64_t duration_ns, HostWork work) {
  NPUSIM_CHECK(duration_ns >= 0, "the host clock cannot go back: advance_host_ns(", duration_ns,
               ") was asked, 0 or more is expected");
  pass_host_ns(duration_ns);
  note_order(work == HostWork::layer ? OrderKind::host_layer : OrderKind::host_time, -1, nullptr,
             nullptr, 0, duration_ns);
}

}  // namespace npusim
