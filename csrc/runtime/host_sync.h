// SPDX-License-Identifier: BSD-3-Clause
// Waits of the host for the device: every wait calls one of these functions first, and the one
// observer, if there is one, hears of it. torch_npusim's observer serves set_sync_debug_mode() and
// torch_npusim.sim.synchronisation.
#pragma once

namespace torch_npusim {

// `what` names the operation and lives as long as the call. `hidden` is false where the program
// asked to wait, as in torch.npusim.synchronize(). The observer may throw: then the wait is
// refused.
using SyncObserver = void (*)(const char* what, bool hidden);

void set_sync_observer(
    SyncObserver observer) noexcept;  // nullptr: none; a wait then costs one load more

// before_hidden_wait(): the wait is a side effect (item(), a copy to the host), which
// set_sync_debug_mode() reports. before_explicit_wait(): the program asked to wait, which
// torch.cuda does not report; such waits are only counted. Both throw what the observer throws.
void before_hidden_wait(const char* what);
void before_explicit_wait(const char* what);

}  // namespace torch_npusim
