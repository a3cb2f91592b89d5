// SPDX-License-Identifier: BSD-3-Clause
// Dropout: the mask is drawn and applied in one command. torch's dropout() comes to native_dropout
// for device tensors while training. _fused_dropout is its older form, with a generator and a byte
// mask.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include "csrc/aten/random_fill.h"
#include "csrc/routes/cuda_temporaries.h"

namespace torch_npusim {

namespace {

template <class T, class Mask>
void drop(const at::Tensor& out, const at::Tensor& mask, const at::Tensor& input, double keep,
          const PhiloxState& state) {
  using Real = at::opmath_type<T>;
  using Scale = typename c10::scalar_value_type<Real>::type;
  const auto scale = static_cast<Scale>(keep == 0 ? 0.0 : 1.0 / keep);
  T* out_data = static_cast<T*>(out.mutable_data_ptr());
  auto* mask_data = static_cast<Mask*>(mask.mutable_data_ptr());
  const T* input_data = static_cast<const T*>(input.const_data_ptr());
  const RowMajorWalk<3> walk(out.sizes(), {out.strides(), mask.strides(), input.strides()});
  for_each_tile<std::uint32_t>(
      state, out.numel(), [&](std::int64_t first, std::int64_t count, const std::uint32_t* draws) {
        walk.run(first, count, [&](std::int64_t k, const auto& offsets) {
          const bool kept = happens(draws[k], keep);
          mask_data[offsets[1]] = static_cast<Mask>(kept);
          // A product, so that NaN and infinity stay visible, as on CPU.
          const Real value = static_cast<Real>(input_data[offsets[2]]) * static_cast<Scale>(kept);
          out_data[offsets[0]] = static_cast<T>(value * scale);
        });
      });
}

// Returns what is kept, scaled, and the mask.
template <class Mask>
std::tuple<at::Tensor, at::Tensor> dropped(const char* op, const at::Tensor& input, double keep,
                                           const MaybeGenerator& generator) {
  const auto made = [&](at::ScalarType dtype) {
    return at::empty_like(input, input.options().dtype(dtype));
  };
  constexpr at::ScalarType kMask = c10::CppTypeToScalarType<Mask>::value;
  at::Tensor out, mask;
  if (as_cuda()) mask = made(kMask);  // CUDA makes it first
  out = made(input.scalar_type());
  if (!mask.defined()) mask = made(kMask);
  const PhiloxState state = reserve_philox(generator, input.device().index());
  const auto body = [&](c10::DeviceIndex device) {
    CpuCall call(op, device);
    const at::Tensor out_view = call.view(out, /*written=*/true);
    const at::Tensor mask_view = call.view(mask, /*written=*/true);
    const at::Tensor input_view = call.view(input, /*written=*/false);
    AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2(
        at::kHalf, at::kBFloat16, input.scalar_type(), "dropout_npusim",
        [&] { drop<scalar_t, Mask>(out_view, mask_view, input_view, keep, state); });
    call.finish();
  };
  launch(op, {&out, &mask, &input}, body, 2.0, /*written=*/2);
  return {out, mask};
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  return dropped<bool>("aten::native_dropout", input, 1.0 - p, std::nullopt);
}

// Its p is the probability to keep.
std::tuple<at::Tensor, at::Tensor> fused_dropout(const at::Tensor& input, double p,
                                                 MaybeGenerator generator) {
  TORCH_CHECK(p >= 0 && p <= 1, "the probability to keep has to be between 0 and 1, but got ", p);
  return dropped<std::uint8_t>("aten::_fused_dropout", input, p, generator);
}

// The gradient of what was kept. As on CUDA, it lies in the memory format that its own suggests.
at::Tensor scaled(const char* op, const at::Tensor& gradient, const at::Tensor& mask,
                  double scale) {
  common_device(op, {&gradient, &mask}, HostScalars::refused);
  if (at::isIntegralType(gradient.scalar_type(), /*includeBool=*/true)) {
    return gradient.mul(mask).mul(scale);  // CUDA has no such kernel, the CPU promotes
  }
  const at::Tensor out = at::empty_like(gradient, gradient.suggest_memory_format());
  const auto body = [&](c10::DeviceIndex device) {
    CpuCall call(op, device);
    at::Tensor product = call.view(out, /*written=*/true);
    at::mul_out(product, call.view(gradient, /*written=*/false), call.view(mask, /*written=*/false))
        .mul_(scale);
    call.finish();
  };
  launch(op, {&out, &gradient, &mask}, body, 2.0);
  return out;
}

at::Tensor native_dropout_backward(const at::Tensor& gradient, const at::Tensor& mask,
                                   double scale) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be Bool Scalar Type ",
              mask.scalar_type());
  return scaled("aten::native_dropout_backward", gradient, mask, scale);
}

at::Tensor masked_scale(const at::Tensor& self, const at::Tensor& mask, double scale) {
  TORCH_CHECK(mask.scalar_type() == at::kByte, "mask should be torch.uint8 dtype, got ",
              mask.scalar_type());
  return scaled("aten::_masked_scale", self, mask, scale);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_dropout", &native_dropout);
  m.impl("native_dropout_backward", &native_dropout_backward);
  m.impl("_fused_dropout", &fused_dropout);
  m.impl("_masked_scale", &masked_scale);
}

}  // namespace torch_npusim
