// SPDX-License-Identifier: BSD-3-Clause
// Translation of the torch-free layers' exceptions into the ones that torch and Python know.
// Invariant: none of them crosses into torch. Every call from csrc/ that may raise one is wrapped.
#pragma once

#include <atomic>
#include <stdexcept>
#include <utility>

#include "backend/backend.h"

namespace torch_npusim {

// Whether errors are CUDA's, in type and words, where those differ: an ordinal that no device has.
inline std::atomic<bool> g_speaks_cuda{false};

// rethrow_as_torch_error() must be called inside a catch block. OutOfMemory becomes
// c10::OutOfMemoryError, DeviceFault c10::AcceleratorError, everything else c10::Error.
[[noreturn]] void rethrow_as_torch_error();

// translated() runs body and returns its result; costs nothing unless it throws.
template <class Body>
decltype(auto) translated(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const npusim::Error&) {
    rethrow_as_torch_error();
  } catch (const std::invalid_argument&) {  // the allocator's own error
    rethrow_as_torch_error();
  }
}

}  // namespace torch_npusim
