// SPDX-License-Identifier: BSD-3-Clause
// What happens when torch_npusim._C is loaded, in this order, and when the process ends.
#pragma once

namespace torch_npusim {

void register_hooks();
void register_profiler();

// register_backend() joins the simulator to torch: allocators, storage type, hooks and profiler.
// The guard and the kernels register themselves when the library is loaded. Call it once.
void register_backend();

// drain_engine_threads() stops the autograd engine and waits, for at most two seconds, until its
// device threads have left the process. Without it a script that ends in backward() can abort.
// The caller must not hold the GIL.
void drain_engine_threads();

}  // namespace torch_npusim
