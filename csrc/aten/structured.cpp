// SPDX-License-Identifier: BSD-3-Clause
// The switch between the structured routes and the boxed kernel alone.
#include "csrc/aten/structured.h"

namespace torch_npusim {

bool fast_routes() noexcept {
  static const bool enabled = npusim::config().fastpath;  // validated when the module was loaded
  return enabled;
}

}  // namespace torch_npusim
