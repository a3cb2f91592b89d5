// SPDX-License-Identifier: BSD-3-Clause
// Quantized tensors, per tensor and per channel: the factories and accessors, which torch's own
// code makes on any device, and the list of operators whose composites would shadow the CPU's
// quantized kernels. Everything else (quantize_per_tensor, dequantize, int_repr, pooling ...) is
// the fallback over quantized host views, so values are the CPU's. The scales and zero points of a
// per-channel tensor lie on its device.
#include <ATen/ops/_empty_affine_quantized_native.h>
#include <ATen/ops/_empty_per_channel_affine_quantized_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_quantized_native.h>
#include <ATen/ops/q_per_channel_axis_native.h>
#include <ATen/ops/q_per_channel_scales_native.h>
#include <ATen/ops/q_per_channel_zero_points_native.h>
#include <ATen/ops/q_scale_native.h>
#include <ATen/ops/q_zero_point_native.h>
#include <ATen/ops/qscheme_native.h>
#include <torch/library.h>

#include "csrc/routes/fallback.h"
#include "csrc/routes/on_operand_device.h"

namespace torch_npusim {

namespace {

// A composite is registered for every backend and would be taken before the fallback.
// tests/ops/test_quantized.py recomputes the list from the dispatcher.
constexpr std::array kShadowed = {"_upsample_nearest_exact2d",
                                  "_upsample_nearest_exact3d",
                                  "avg_pool2d",
                                  "avg_pool3d",
                                  "cat",
                                  "clamp",
                                  "clone",
                                  "eq.Scalar",
                                  "eq.Tensor",
                                  "ge.Scalar",
                                  "ge.Tensor",
                                  "gelu",
                                  "gelu_",
                                  "gt.Scalar",
                                  "gt.Tensor",
                                  "hardsigmoid",
                                  "index.Tensor",
                                  "le.Scalar",
                                  "le.Tensor",
                                  "leaky_relu",
                                  "leaky_relu_",
                                  "lt.Scalar",
                                  "lt.Tensor",
                                  "max.dim",
                                  "mean.dim",
                                  "min.dim",
                                  "ne.Scalar",
                                  "ne.Tensor",
                                  "sigmoid",
                                  "sort.stable",
                                  "tanh",
                                  "threshold",
                                  "topk",
                                  "upsample_bilinear2d",
                                  "upsample_nearest2d",
                                  "upsample_nearest3d"};

}  // namespace

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("_empty_affine_quantized", on_operand_device<at::native::empty_affine_quantized>());
  m.impl("empty_quantized", on_operand_device<at::native::empty_quantized>());
  m.impl("empty_like", on_operand_device<at::native::empty_like_quantized>());
  m.impl("q_scale", &at::native::q_scale_quant);
  m.impl("q_zero_point", &at::native::q_zero_point_quant);
  m.impl("qscheme", &at::native::qscheme_quant);
  serve_by_fallback(m, kShadowed);
  m.impl("_empty_per_channel_affine_quantized",
         on_operand_device<at::native::empty_per_channel_affine_quantized>());
  m.impl("q_per_channel_scales", &at::native::q_per_channel_scales);
  m.impl("q_per_channel_zero_points", &at::native::q_per_channel_zero_points);
  m.impl("q_per_channel_axis", &at::native::q_per_channel_axis);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_empty_affine_quantized", on_operand_device<at::native::empty_affine_quantized>());
  m.impl("_empty_per_channel_affine_quantized",
         on_operand_device<at::native::empty_per_channel_affine_quantized>());
}

}  // namespace torch_npusim
