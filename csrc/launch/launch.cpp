// SPDX-License-Identifier: BSD-3-Clause
// Operand checks.
#include "csrc/launch/launch.h"

#include <cstring>

#include "csrc/operands/alignment.h"
#include "csrc/runtime/cuda_names.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

std::string qualified_name(const char* name, const char* overload) {
  std::string qualified = name;
  if (overload[0] != '\0') qualified += std::string(".") + overload;
  return qualified;
}

namespace {

// CUDA checks indices in a place of its own.
void refuse_indices(const char* op, const at::TensorBase& self) {
  TORCH_CHECK(!is_called_cuda() || std::strcmp(op, "aten::index.Tensor") != 0,
              "indices should be either on cpu or on the same device as the indexed tensor (",
              self.device(), ")");
}

[[noreturn]] void refuse_devices(const char* op, c10::Device first, c10::Device other) {
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              first, " and ", other, "!\n(when checking the arguments of ", op,
              "; move them with .to(\"", first, "\"))");
}

}  // namespace

c10::DeviceIndex common_device(const char* op, c10::ArrayRef<const at::TensorBase*> operands,
                               HostScalars host_scalars) {
  const at::TensorBase* first = nullptr;
  for (const at::TensorBase* operand : operands) {
    if (!operand->defined() || !operand->is_privateuseone()) continue;
    if (first == nullptr) {
      first = operand;
    } else if (operand->device() != first->device()) {
      refuse_indices(op, *operands[0]);
      refuse_devices(op, first->device(), operand->device());
    }
    check_within_storage(op, *operand);
    check_alignment(op, *operand);
  }
  // Without a tensor of the device, only a generator of the device dispatches a call here.
  TORCH_CHECK(first != nullptr, "Expected a 'cpu' device type for generator but found '",
              c10::get_privateuse1_backend(), "'");
  for (const at::TensorBase* operand : operands) {
    if (!operand->defined() || operand->is_privateuseone()) continue;
    const bool host_scalar = operand->is_cpu() && operand->dim() == 0;
    const bool accepted = host_scalar && (host_scalars == HostScalars::accepted ||
                                          operand->unsafeGetTensorImpl()->is_wrapped_number());
    if (accepted) continue;
    refuse_indices(op, *operands[0]);
    refuse_devices(op, first->device(), operand->device());
  }
  return first->device().index();
}

}  // namespace torch_npusim
