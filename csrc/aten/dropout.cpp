// SPDX-License-Identifier: BSD-3-Clause
// native_dropout: the mask is drawn and applied in one command. torch's dropout() comes here for
// device tensors while training; its gradient is native_dropout_backward, an elementwise product.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include "csrc/aten/random_fill.h"

namespace torch_npusim {

namespace {

template <class T>
void drop(const at::Tensor& out, const at::Tensor& mask, const at::Tensor& input, double keep,
          const PhiloxState& state) {
  using Real = at::opmath_type<T>;
  using Scale = typename c10::scalar_value_type<Real>::type;
  const auto scale = static_cast<Scale>(keep == 0 ? 0.0 : 1.0 / keep);
  T* out_data = static_cast<T*>(out.mutable_data_ptr());
  bool* mask_data = static_cast<bool*>(mask.mutable_data_ptr());
  const T* input_data = static_cast<const T*>(input.const_data_ptr());
  const RowMajorWalk<3> walk(out.sizes(), {out.strides(), mask.strides(), input.strides()});
  for_each_tile<std::uint32_t>(
      state, out.numel(), [&](std::int64_t first, std::int64_t count, const std::uint32_t* draws) {
        walk.run(first, count, [&](std::int64_t k, const auto& offsets) {
          const bool kept = happens(draws[k], keep);
          mask_data[offsets[1]] = kept;
          // A product, so that NaN and infinity stay visible, as on CPU.
          const Real value = static_cast<Real>(input_data[offsets[2]]) * static_cast<Scale>(kept);
          out_data[offsets[0]] = static_cast<T>(value * scale);
        });
      });
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  const auto like_input = input.options().dtype(at::kBool);
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, like_input)};
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  at::Tensor out = at::empty_like(input);
  at::Tensor mask = at::empty_like(input, like_input);
  const PhiloxState state = reserve_philox(std::nullopt, input.device().index());
  const auto body = [&](c10::DeviceIndex device) {
    HostCall call("aten::native_dropout", device);
    const at::Tensor out_view = call.view(out, /*written=*/true);
    const at::Tensor mask_view = call.view(mask, /*written=*/true);
    const at::Tensor input_view = call.view(input, /*written=*/false);
    AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2(
        at::kHalf, at::kBFloat16, input.scalar_type(), "native_dropout_npusim",
        [&] { drop<scalar_t>(out_view, mask_view, input_view, 1.0 - p, state); });
    call.finish();
  };
  launch("aten::native_dropout", {&out, &mask, &input}, HostScalars::refused, body, 2.0);
  return {out, mask};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("native_dropout", TORCH_FN(native_dropout)); }

}  // namespace torch_npusim
