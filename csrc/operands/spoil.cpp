// SPDX-License-Identifier: BSD-3-Clause
// Garbage by dtype.
#include "csrc/operands/spoil.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/fill.h>

#include <limits>

#include "backend/backend.h"
#include "csrc/operands/host_view.h"
#include "csrc/runtime/kernel_scope.h"

namespace torch_npusim {

void spoil(const at::TensorBase& written) {
  if (npusim::dry() || !written.defined() || !written.is_privateuseone() || written.is_nested() ||
      !written.unsafeGetTensorImpl()->key_set().has_all(
          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1))) {
    return;
  }
  const NoWrappers no_wrappers;
  at::Tensor bytes = host_view(at::Tensor(written));
  const at::ScalarType dtype = bytes.scalar_type();
  if (at::isFloatingType(dtype) || at::isComplexType(dtype)) {
    bytes.fill_(std::numeric_limits<double>::quiet_NaN());
  } else if (dtype == at::kBool) {
    bytes.fill_(true);
  } else if (dtype == at::kByte) {
    bytes.fill_(255);
  } else if (at::isIntegralType(dtype, /*includeBool=*/false)) {
    bytes.fill_(-1);
  }
}

}  // namespace torch_npusim
