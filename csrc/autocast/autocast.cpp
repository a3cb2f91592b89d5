// SPDX-License-Identifier: BSD-3-Clause
// torch.autocast("npusim"): torch's own operator lists per cast policy, the ones CUDA registers.
// Invariant: an operator that is on no list falls through; without that line every one of them
// would raise inside autocast.
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace torch_npusim {

namespace {

at::Tensor refuse_binary_cross_entropy(const at::Tensor&, const at::Tensor&,
                                       const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
              "autocast: half precision cannot hold the logarithm of a small probability. Use "
              "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe.");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at;  // NOLINT: the operator lists name at::'s operators and types unqualified
#define NPUSIM_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define NPUSIM_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define NPUSIM_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define NPUSIM_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(NPUSIM_LOWER_PRECISION)
  AT_FORALL_FP32(NPUSIM_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(NPUSIM_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(NPUSIM_PROMOTE)
#undef NPUSIM_LOWER_PRECISION
#undef NPUSIM_FP32
#undef NPUSIM_FP32_SET_OPT_DTYPE
#undef NPUSIM_PROMOTE

  // As on CUDA.
  m.impl(TORCH_SELECTIVE_NAME("aten::binary_cross_entropy"), &refuse_binary_cross_entropy);
}

}  // namespace

}  // namespace torch_npusim
