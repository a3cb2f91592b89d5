// SPDX-License-Identifier: BSD-3-Clause
// Which of the device's peaks computing on a dtype is held against.
#pragma once

#include <c10/core/ScalarType.h>

#include "backend/backend.h"

namespace torch_npusim {

// precision_of() is the one table of precisions; spec.h says what they are.
npusim::Precision precision_of(at::ScalarType dtype);

}  // namespace torch_npusim
