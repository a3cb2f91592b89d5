// SPDX-License-Identifier: BSD-3-Clause
// First calls of MKL's vector functions: several threads at once may not make them.
#pragma once

namespace torch_npusim {

// Calls each function of MKL's vector library that torch's CPU kernels use, once, for float and for
// double, on this thread. MKL chooses a function's kernel in its first call; of several first calls
// at once, one may compute with a kernel of half the digits (pytorch/pytorch #188792). To be called
// before a kernel runs on several threads. Launches nothing on a device.
void settle_vector_functions();

}  // namespace torch_npusim
