// SPDX-License-Identifier: BSD-3-Clause
// A scope for the calls that a kernel makes itself: which dispatch keys they skip.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace torch_npusim {

// wrapper_keys() are the dispatch keys that a kernel's own calls must skip: autograd and autocast
// have had their turn before the kernel was reached.
inline c10::DispatchKeySet wrapper_keys() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
}

// NoWrappers: for its length the calls of this thread skip wrapper_keys(), because CPU kernels that
// stand in for a device's meet neither autograd nor autocast again. Mostly core skips them already
// when a kernel is reached, which one look tells.
class NoWrappers {
 public:
  NoWrappers() {
    const c10::DispatchKeySet skipped = c10::impl::tls_local_dispatch_key_set().excluded_;
    if (C10_UNLIKELY(!skipped.has_all(wrapper_keys()))) guard_.emplace(wrapper_keys());
  }

 private:
  std::optional<c10::impl::ExcludeDispatchKeyGuard> guard_;
};

}  // namespace torch_npusim
