// SPDX-License-Identifier: BSD-3-Clause
// Uniform draws: uniform_, random_, bernoulli and randperm. torch's own functions check the
// arguments and resolve overloads; the kernels behind their stubs are here.
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/OpMathType.h>
#include <ATen/core/TransformationHelper.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/bernoulli_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/random_native.h>
#include <ATen/ops/uniform_native.h>
#include <torch/library.h>

#include "csrc/aten/random_fill.h"

namespace torch_npusim {

namespace {

void uniform_kernel(at::TensorIteratorBase& iter, double from, double to,
                    MaybeGenerator generator) {
  const at::TensorBase& self = iter.tensor(0);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, self.scalar_type(), "uniform_kernel_cuda", [&] {
        using Real = at::opmath_type<scalar_t>;
        using Draw = DrawFor<scalar_t>;
        const auto low = static_cast<Real>(from);
        const Real width = static_cast<Real>(to) - low;
        const auto lowest = static_cast<scalar_t>(from);
        const auto excluded = static_cast<scalar_t>(to);
        fill<scalar_t, Draw>(
            "aten::uniform_", self, generator,
            [=](const Draw* draws, std::int64_t count, scalar_t* values) {
              for (std::int64_t k = 0; k < count; ++k) {
                const auto value = static_cast<scalar_t>(unit(draws[k]) * width + low);
                values[k] = value == excluded ? lowest : value;  // rounding may reach the end
              }
            },
            2.0);
      });
}

template <class T, class Draw>
void fill_between(const at::TensorBase& self, const MaybeGenerator& generator, std::uint64_t range,
                  std::int64_t base) {
  fill<T, Draw>(
      "aten::random_.from", self, generator,
      [=](const Draw* draws, std::int64_t count, T* values) {
        for (std::int64_t k = 0; k < count; ++k) {
          // Unsigned, because range may exceed what the signed type holds.
          const std::uint64_t value = below(draws[k], range) + static_cast<std::uint64_t>(base);
          values[k] = static_cast<T>(static_cast<std::int64_t>(value));
        }
      },
      2.0);
}

void random_from_to_kernel(at::TensorIteratorBase& iter, std::uint64_t range, std::int64_t base,
                           MaybeGenerator generator) {
  constexpr std::uint64_t kWide = 1ULL << 28;  // from here on 32 bits would skew by over 5 %
  const at::TensorBase& self = iter.tensor(0);
  AT_DISPATCH_V2(self.scalar_type(), "random_from_to_kernel_cuda", AT_WRAP([&] {
                   if (range >= kWide) {
                     fill_between<scalar_t, std::uint64_t>(self, generator, range, base);
                   } else {
                     fill_between<scalar_t, std::uint32_t>(self, generator, range, base);
                   }
                 }),
                 at::kBool, at::kHalf, at::kBFloat16, AT_EXPAND(AT_ALL_TYPES),
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
}

// random_(-2**63, None): every 64-bit integer, as it is drawn.
void random_full_range_kernel(at::TensorIteratorBase& iter, MaybeGenerator generator) {
  const at::TensorBase& self = iter.tensor(0);
  const at::ScalarType dtype = self.scalar_type();
  TORCH_CHECK(
      dtype == at::kLong || dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16,
      "random_full_64_bits_range_kernel_cuda handles only int64, double, float and "
      "bfloat16");
  AT_DISPATCH_ALL_TYPES_AND(at::kBFloat16, dtype, "random_full_64_bits_range_kernel_cuda", [&] {
    fill<scalar_t, std::uint64_t>(
        "aten::random_.from", self, generator,
        [](const std::uint64_t* draws, std::int64_t count, scalar_t* values) {
          for (std::int64_t k = 0; k < count; ++k) {
            values[k] = at::transformation::uniform_int_full_range<scalar_t>(draws[k]);
          }
        },
        1.0);
  });
}

void random_kernel(at::TensorIteratorBase& iter, MaybeGenerator generator) {
  const at::TensorBase& self = iter.tensor(0);
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, self.scalar_type(), "random_kernel_cuda", [&] {
        using Draw = DrawFor<scalar_t>;
        fill<scalar_t, Draw>(
            "aten::random_", self, generator,
            [](const Draw* draws, std::int64_t count, scalar_t* values) {
              for (std::int64_t k = 0; k < count; ++k) {
                values[k] = at::transformation::uniform_int<scalar_t>(draws[k]);
              }
            },
            1.0);
      });
}

void bernoulli_scalar_kernel(const at::TensorBase& self, const double p, MaybeGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kBool, at::kBFloat16, at::kHalf, self.scalar_type(), "bernoulli_scalar_cuda_", [&] {
        fill<scalar_t, std::uint32_t>(
            "aten::bernoulli_.float", self, generator,
            [p](const std::uint32_t* draws, std::int64_t count, scalar_t* values) {
              for (std::int64_t k = 0; k < count; ++k) {
                values[k] = static_cast<scalar_t>(happens(draws[k], p));
              }
            },
            1.0);
      });
}

// Probabilities of one tile, in the order of the walk.
template <class P>
void read_probabilities(const at::Tensor& p, const RowMajorWalk<2>& walk, std::int64_t first,
                        std::int64_t count, double* values) {
  const P* from = static_cast<const P*>(p.const_data_ptr());
  walk.run(first, count, [&](std::int64_t k, const auto& offsets) {
    values[k] = static_cast<double>(from[offsets[1]]);
    TORCH_CHECK(values[k] >= 0 && values[k] <= 1,
                "bernoulli expects all elements of p to be in [0, 1], but got p=", values[k]);
  });
}

template <class T>
void write_events(const at::Tensor& out, const RowMajorWalk<2>& walk, std::int64_t first,
                  std::int64_t count, const bool* events) {
  T* to = static_cast<T*>(out.mutable_data_ptr());
  walk.run(first, count, [&](std::int64_t k, const auto& offsets) {
    to[offsets[0]] = static_cast<T>(events[k]);
  });
}

void draw_events(const at::Tensor& out, const at::Tensor& p, const PhiloxState& state) {
  const RowMajorWalk<2> walk(out.sizes(), {out.strides(), p.strides()});
  // CUDA looks at the dtype of the result first.
  const auto write = AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kBFloat16, at::kHalf,
                                                out.scalar_type(), "bernoulli_tensor_cuda_self_",
                                                [] { return &write_events<scalar_t>; });
  const auto read = AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, p.scalar_type(),
                                                    "bernoulli_tensor_cuda_p_",
                                                    [] { return &read_probabilities<scalar_t>; });
  for_each_tile<std::uint32_t>(
      state, out.numel(), [&](std::int64_t first, std::int64_t count, const std::uint32_t* draws) {
        double probabilities[kTileElements];
        bool events[kTileElements];
        read(p, walk, first, count, probabilities);
        for (std::int64_t k = 0; k < count; ++k) events[k] = happens(draws[k], probabilities[k]);
        write(out, walk, first, count, events);
      });
}

void bernoulli_tensor_kernel(const at::TensorBase& self, const at::TensorBase& probabilities,
                             MaybeGenerator generator) {
  TORCH_CHECK(at::isFloatingType(probabilities.scalar_type()),
              "expected probabilities tensor to have floating type, got ",
              probabilities.scalar_type());
  const at::Tensor target(self);
  // As on CUDA, probabilities may lie on another device.
  const at::Tensor p = at::Tensor(probabilities).to(target.device()).expand_as(target);
  const PhiloxState state = reserve_philox(generator, target.device().index());
  const auto body = [&](c10::DeviceIndex device) {
    CpuCall call("aten::bernoulli_.Tensor", device);
    const at::Tensor out = call.view(target, /*written=*/true);
    const at::Tensor from = call.view(p, /*written=*/false);
    draw_events(out, from, state);
    call.finish();
  };
  launch("aten::bernoulli_.Tensor", {&target, &p}, body);
}

// Fisher-Yates: step i swaps element i with one of those from i on, chosen by draw i.
template <class T>
void permute(T* data, std::int64_t stride, std::int64_t n, const PhiloxState& state) {
  for (std::int64_t i = 0; i < n; ++i) data[i * stride] = static_cast<T>(i);
  std::uint64_t draws[kTileElements];
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t k = i % kTileElements;
    if (k == 0) philox_draws(state, i, std::min(kTileElements, n - i), draws);
    const auto choices = static_cast<std::uint64_t>(n - i);
    std::swap(data[i * stride],
              data[(i + static_cast<std::int64_t>(below(draws[k], choices))) * stride]);
  }
}

void check_fits(std::int64_t n, at::ScalarType dtype) {
  // torch's check makes a scalar of the result's type: on the CPU it costs no command.
  at::native::check_supported_max_int_with_precision(
      n, at::empty({0}, at::device(at::kCPU).dtype(dtype)));
}

// Core draws into a tensor of any device.
at::Tensor& bernoulli_out(const at::Tensor& self, MaybeGenerator generator, at::Tensor& out) {
  common_device("aten::bernoulli", {&self, &out}, HostScalars::refused);
  return at::native::bernoulli_out(self, generator, out);
}

at::Tensor& bernoulli_(at::Tensor& self, const at::Tensor& p, MaybeGenerator generator) {
  if (!self.is_privateuseone()) {
    common_device("aten::bernoulli_", {&self, &p}, HostScalars::refused);
  }
  return at::native::bernoulli_(self, p, generator);
}

at::Tensor& randperm_out(std::int64_t n, MaybeGenerator generator, at::Tensor& result) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  check_fits(n, result.scalar_type());
  result.resize_({n});
  const PhiloxState state = reserve_philox(generator, result.device().index());
  const auto body = [&](c10::DeviceIndex device) {
    CpuCall call("aten::randperm.generator_out", device);
    const at::Tensor view = call.view(result, /*written=*/true);
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, view.scalar_type(), "randperm", [&] {
      permute(static_cast<scalar_t*>(view.mutable_data_ptr()), view.stride(0), n, state);
    });
    call.finish();
  };
  launch("aten::randperm.generator_out", {&result}, body, 4.0);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using at::Tensor;
  m.impl("uniform_", &Drawing<&at::native::uniform_>::call);
  m.impl("random_",
         &Drawing<static_cast<Tensor& (*)(Tensor&, MaybeGenerator)>(&at::native::random_)>::call);
  m.impl("random_.to", &Drawing<static_cast<Tensor& (*)(Tensor&, int64_t, MaybeGenerator)>(
                           &at::native::random_)>::call);
  m.impl(
      "random_.from",
      &Drawing<static_cast<Tensor& (*)(Tensor&, int64_t, std::optional<int64_t>, MaybeGenerator)>(
          &at::native::random_)>::call);
  m.impl("bernoulli_.float", &Drawing<static_cast<Tensor& (*)(Tensor&, double, MaybeGenerator)>(
                                 &at::native::bernoulli_)>::call);
  m.impl("bernoulli_.Tensor", &Drawing<&bernoulli_>::call);
  m.impl("bernoulli.out", &Drawing<&bernoulli_out>::call);
  m.impl("randperm.generator_out", &randperm_out);
}

}  // namespace torch_npusim

namespace at::native {

REGISTER_PRIVATEUSE1_DISPATCH(uniform_stub, &torch_npusim::uniform_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(random_from_to_stub, &torch_npusim::random_from_to_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(random_full_64_bits_range_stub,
                              &torch_npusim::random_full_range_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(random_stub, &torch_npusim::random_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(bernoulli_scalar_stub, &torch_npusim::bernoulli_scalar_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(bernoulli_tensor_stub, &torch_npusim::bernoulli_tensor_kernel)

}  // namespace at::native
