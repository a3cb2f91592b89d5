// SPDX-License-Identifier: BSD-3-Clause
// histc() of integers, which CUDA has and the CPU has not: the CPU's histogram of the same numbers
// in float64. Dividing there is exact wherever a number lies on the edge of a bin, so the counts
// are those of CUDA's integer arithmetic. transformers counts tokens per expert with it.
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/histc_ops.h>
#include <torch/library.h>

#include <optional>

#include "csrc/launch/launch.h"
#include "csrc/routes/cpu_kernel.h"

namespace torch_npusim {

namespace {

bool is_integer(const at::Tensor& self) {
  return at::isIntegralType(self.scalar_type(), /*includeBool=*/false);
}

// Without a range CUDA's host reads the smallest and the largest value.
void wait_for_range(std::optional<HostWait>& wait, const at::Tensor& self, const at::Scalar& min,
                    const at::Scalar& max) {
  if (min.toDouble() != max.toDouble() || self.numel() == 0) return;
  wait.emplace("aten::histc", npusim::current_stream(self.device().index()));
}

at::Tensor count_in_bins(const at::Tensor& self, int64_t bins, const at::Scalar& min,
                         const at::Scalar& max) {
  if (!is_integer(self)) {
    std::optional<HostWait> wait;
    wait_for_range(wait, self, min, max);
    return CpuKernel<at::_ops::histc>::call(self, bins, min, max);
  }
  return at::histc(self.to(at::kDouble), bins, min, max).to(self.scalar_type());
}

at::Tensor& count_in_bins_out(const at::Tensor& self, int64_t bins, const at::Scalar& min,
                              const at::Scalar& max, at::Tensor& out) {
  if (!is_integer(self)) {
    std::optional<HostWait> wait;
    wait_for_range(wait, self, min, max);
    return CpuKernel<at::_ops::histc_out>::call(self, bins, min, max, out);
  }
  TORCH_CHECK(out.scalar_type() == self.scalar_type(), "torch.histc: input tensor and out tensor ",
              "should have the same dtype, but got ", self.dtype(), " and ", out.dtype());
  const at::Tensor counts = count_in_bins(self, bins, min, max);
  at::native::resize_output(out, counts.sizes());
  return out.copy_(counts);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("histc", &count_in_bins);
  m.impl("histc.out", &count_in_bins_out);
}

}  // namespace torch_npusim
