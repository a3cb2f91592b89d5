// SPDX-License-Identifier: BSD-3-Clause
// backward() computes with the arithmetic of its caller's thread, as on the CPU.
//
// torch.set_num_threads() and torch.set_flush_denormal() hold for one thread and for threads that
// start later. The autograd engine runs the nodes of a device in a thread of its own, whose thread
// count would be the latest of any thread: the DataLoader's thread for pinned memory sets 1, and
// products round otherwise then.
#pragma once

namespace torch_npusim {

// keep_backward_caller() keeps the thread count and the floating-point environment of this thread,
// unless it is one of the engine's.
void keep_backward_caller();

// follow_backward_caller() gives to a thread of the engine what was kept last; other threads stay
// as they are. Concurrent callers of backward() must therefore agree.
void follow_backward_caller();

}  // namespace torch_npusim
