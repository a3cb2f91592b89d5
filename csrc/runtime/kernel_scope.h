// SPDX-License-Identifier: BSD-3-Clause
// Scopes for the calls that a kernel makes itself: which dispatch keys they skip, and where their
// allocations come from. Both scopes belong to one thread.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

#include "backend/backend.h"
#include "csrc/runtime/scratch_allocator.h"

namespace torch_npusim {

// wrapper_keys() are the dispatch keys that a kernel's own calls must skip: autograd and autocast
// have had their turn before the kernel was reached.
inline c10::DispatchKeySet wrapper_keys() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
}

// NoWrappers: for its length the calls of this thread skip wrapper_keys(). Mostly core skips them
// already when a kernel is reached, which one look tells.
class NoWrappers {
 public:
  NoWrappers() {
    const c10::DispatchKeySet skipped = c10::impl::tls_local_dispatch_key_set().excluded_;
    if (C10_UNLIKELY(!skipped.has_all(wrapper_keys()))) guard_.emplace(wrapper_keys());
  }

 private:
  std::optional<c10::impl::ExcludeDispatchKeyGuard> guard_;
};

// KernelScope: what holds while CPU kernels stand in for a device's. They meet neither autograd nor
// autocast again, which have had their turn, and what they allocate is device memory, so that
// results are born there; in a dry run, in which no kernel runs, it is the host's.
class KernelScope {
 public:
  explicit KernelScope(c10::DeviceIndex device) noexcept
      : scratch_(C10_UNLIKELY(npusim::dry()) ? kHostMemory : device) {}

 private:
  NoWrappers no_wrappers_;
  ScratchScope scratch_;
};

}  // namespace torch_npusim
