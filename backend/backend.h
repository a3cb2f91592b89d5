// SPDX-License-Identifier: BSD-3-Clause
// The simulated machine: the header of backend/ that other layers include. Parts that few files
// need have headers of their own: observer.h, races.h, timeline.h, promised_end.h, fabric.h,
// collective_board.h, sharing.h, device_loss.h (tests/repo/test_layers.py lists them).
// Invariant: std and POSIX only; nothing here knows torch, Python or allocator/.
// Start reading at device.h, then memory.h, stream.h and command.h.
#pragma once

#include "backend/clock.h"          // IWYU pragma: export
#include "backend/command.h"        // IWYU pragma: export
#include "backend/config.h"         // IWYU pragma: export
#include "backend/copy.h"           // IWYU pragma: export
#include "backend/cost_model.h"     // IWYU pragma: export
#include "backend/device.h"         // IWYU pragma: export
#include "backend/dry_run.h"        // IWYU pragma: export
#include "backend/error.h"          // IWYU pragma: export
#include "backend/event.h"          // IWYU pragma: export
#include "backend/fault.h"          // IWYU pragma: export
#include "backend/graph.h"          // IWYU pragma: export
#include "backend/memory.h"         // IWYU pragma: export
#include "backend/pinned_memory.h"  // IWYU pragma: export
#include "backend/process.h"        // IWYU pragma: export
#include "backend/spec.h"           // IWYU pragma: export
#include "backend/stream.h"         // IWYU pragma: export
