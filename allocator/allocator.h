// SPDX-License-Identifier: BSD-3-Clause
// The one header that other layers include. The allocator is pure bookkeeping: give it a Provider
// and a Config, and it decides which address a request gets.
#pragma once

#include "allocator/block.h"              // IWYU pragma: export
#include "allocator/caching_allocator.h"  // IWYU pragma: export
#include "allocator/config.h"             // IWYU pragma: export
#include "allocator/error.h"              // IWYU pragma: export
#include "allocator/live_allocator.h"     // IWYU pragma: export
#include "allocator/memory_pool.h"        // IWYU pragma: export
#include "allocator/out_of_memory.h"      // IWYU pragma: export
#include "allocator/policy_allocator.h"   // IWYU pragma: export
#include "allocator/provider.h"           // IWYU pragma: export
#include "allocator/snapshot.h"           // IWYU pragma: export
#include "allocator/snapshot_fields.h"    // IWYU pragma: export
#include "allocator/stats.h"              // IWYU pragma: export
