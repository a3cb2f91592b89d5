// SPDX-License-Identifier: BSD-3-Clause
// Which allocator stands behind the live devices: chosen before the first allocation, by
// change_allocator() or else by NPUSIM_ALLOCATOR and PYTORCH_ALLOC_CONF, and fixed from then on.
// Some rules of the caching allocator change later, by set_allocator_settings().
#pragma once

#include <memory>
#include <string>

#include "allocator/allocator.h"
#include "csrc/runtime/pluggable_allocator.h"

namespace torch_npusim {

// make_allocator() is called once per device; the provider must outlive the allocator. Without a
// choice of change_allocator() it reads "preset[,key:value...]" or "policy[,key:value...]" from
// NPUSIM_ALLOCATOR, where a policy is one of live_policies() or the path of a shared library, and
// applies the keys of PYTORCH_ALLOC_CONF to a preset. "auto" is "cuda-2.13" if the first allocator
// is made under the CUDA alias, and else "npusim". Raises, naming the variable, for a text that is
// not understood.
std::unique_ptr<npusim::alloc::LiveAllocator> make_allocator(npusim::alloc::Provider& provider,
                                                             c10::DeviceIndex device);

// change_allocator() sets the choice: a text as NPUSIM_ALLOCATOR takes, which make_allocator()
// reads, or functions. Raises once an allocator has been made.
void change_allocator(const std::string& text);
void change_allocator(const PluggableFunctions& functions);

// set_allocator_settings() takes keys of PYTORCH_ALLOC_CONF, which win over the environment's and
// earlier ones (alloc::followed_by()). Raises ValueError for keys that are not understood, and once
// an allocator has been made for those that change_config() refuses.
void set_allocator_settings(const std::string& text);

// allocator_name() is "native" for the caching allocator under any preset, "pluggable", or the text
// that names a policy.
std::string allocator_name();
// allocator_choice() is the text that chose it, as for NPUSIM_ALLOCATOR; "pluggable" for functions.
std::string allocator_choice();
// allocator_settings() is that text with the keys of PYTORCH_ALLOC_CONF and of
// set_allocator_settings() that are in force.
std::string allocator_settings();

}  // namespace torch_npusim
