// SPDX-License-Identifier: BSD-3-Clause
// Draws from other distributions than the uniform: normal, exponential, Cauchy, geometric and
// log-normal. torch's own functions check the arguments; the kernels behind their stubs are here.
#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/OpMathType.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/cauchy_native.h>
#include <ATen/ops/exponential_native.h>
#include <ATen/ops/geometric_native.h>
#include <ATen/ops/log_normal_native.h>
#include <ATen/ops/normal_native.h>
#include <c10/util/MathConstants.h>
#include <torch/library.h>

#include <cmath>

#include "csrc/aten/random_fill.h"

namespace torch_npusim {

namespace {

// Fills with change(z), z standard normal of the type that computations on T use.
template <class T, class Change>
void fill_normal(const char* op, const at::TensorBase& self, const MaybeGenerator& generator,
                 const Change& change) {
  using Draw = DrawFor<T>;
  using Real = at::opmath_type<T>;
  fill<T, Draw>(
      op, self, generator,
      [&](const Draw* draws, std::int64_t count, T* values) {
        Real normals[kTileElements];
        standard_normals(draws, count, normals);
        for (std::int64_t k = 0; k < count; ++k) values[k] = static_cast<T>(change(normals[k]));
      },
      20.0);
}

// Fills with change(u), u uniform in (0, 1).
template <class T, class Change>
void fill_from_uniform(const char* op, const at::TensorBase& self, const MaybeGenerator& generator,
                       const Change& change) {
  using Draw = DrawFor<T>;
  fill<T, Draw>(
      op, self, generator,
      [&](const Draw* draws, std::int64_t count, T* values) {
        for (std::int64_t k = 0; k < count; ++k) {
          values[k] = static_cast<T>(change(open_unit(draws[k])));
        }
      },
      20.0);
}

void normal_kernel(const at::TensorBase& self, const double mean, const double std,
                   MaybeGenerator generator) {
  at::assert_no_internal_overlap(self);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, self.scalar_type(), "normal_kernel_cuda", [&] {
        using Real = at::opmath_type<scalar_t>;
        fill_normal<scalar_t>("aten::normal_", self, generator,
                              [mean = static_cast<Real>(mean), deviation = static_cast<Real>(std)](
                                  Real z) { return z * deviation + mean; });
      });
}

void log_normal_kernel(at::TensorIteratorBase& iter, const double mean, const double std,
                       MaybeGenerator generator) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "log_normal_cuda", [&] {
    using Real = at::opmath_type<scalar_t>;
    fill_normal<scalar_t>("aten::log_normal_", iter.tensor(0), generator,
                          [mean = static_cast<Real>(mean), deviation = static_cast<Real>(std)](
                              Real z) { return std::exp(z * deviation + mean); });
  });
}

void exponential_kernel(at::TensorIteratorBase& iter, const double lambda,
                        MaybeGenerator generator) {
  TORCH_CHECK(at::isFloatingType(iter.dtype()),
              "Exponential distribution is a continuous probability distribution. dtype must be a "
              "floating point but you specified ",
              iter.dtype());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "exponential_cuda", [&] {
    // Zero never occurs (samplers divide by these); float16 has nothing smaller than 2^-24.
    const double least = std::is_same_v<scalar_t, at::Half> ? 0x1p-24 : 0.0;
    fill_from_uniform<scalar_t>(
        "aten::exponential_", iter.tensor(0), generator,
        [lambda, least](double u) { return std::max(-std::log(u), least) / lambda; });
  });
}

void cauchy_kernel(at::TensorIteratorBase& iter, const double median, const double sigma,
                   MaybeGenerator generator) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "cauchy_cuda", [&] {
    fill_from_uniform<scalar_t>("aten::cauchy_", iter.tensor(0), generator,
                                [median, sigma](double u) {
                                  return median + sigma * std::tan(c10::pi<double> * (u - 0.5));
                                });
  });
}

void geometric_kernel(at::TensorIteratorBase& iter, const double p, MaybeGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "geometric_cuda", [&] {
    fill_from_uniform<scalar_t>("aten::geometric_", iter.tensor(0), generator,
                                [log_of_failure = std::log1p(-p)](double u) {
                                  return std::ceil(std::log(u) / log_of_failure);
                                });
  });
}

}  // namespace

// normal.float_float and its variants are composites over normal_.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using at::Tensor;
  m.impl("normal_", &Drawing<&at::native::normal_>::call);
  m.impl("normal.Tensor_float",
         &Drawing<static_cast<Tensor (*)(const Tensor&, double, MaybeGenerator)>(
             &at::native::normal)>::call);
  m.impl("normal.float_Tensor",
         &Drawing<static_cast<Tensor (*)(double, const Tensor&, MaybeGenerator)>(
             &at::native::normal)>::call);
  m.impl("normal.Tensor_Tensor",
         &Drawing<static_cast<Tensor (*)(const Tensor&, const Tensor&, MaybeGenerator)>(
             &at::native::normal)>::call);
  m.impl("normal.Tensor_float_out",
         &Drawing<static_cast<Tensor& (*)(const Tensor&, double, MaybeGenerator, Tensor&)>(
             &at::native::normal_out)>::call);
  m.impl("normal.float_Tensor_out",
         &Drawing<static_cast<Tensor& (*)(double, const Tensor&, MaybeGenerator, Tensor&)>(
             &at::native::normal_out)>::call);
  m.impl("normal.Tensor_Tensor_out",
         &Drawing<static_cast<Tensor& (*)(const Tensor&, const Tensor&, MaybeGenerator, Tensor&)>(
             &at::native::normal_out)>::call);
  m.impl("exponential_", &Drawing<&at::native::exponential_>::call);
  m.impl("cauchy_", &Drawing<&at::native::cauchy_>::call);
  m.impl("geometric_", &Drawing<&at::native::geometric_>::call);
  m.impl("log_normal_", &Drawing<&at::native::log_normal_>::call);
}

}  // namespace torch_npusim

namespace at::native {

REGISTER_PRIVATEUSE1_DISPATCH(normal_stub, &torch_npusim::normal_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(log_normal_stub, &torch_npusim::log_normal_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(exponential_stub, &torch_npusim::exponential_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(cauchy_stub, &torch_npusim::cauchy_kernel)
REGISTER_PRIVATEUSE1_DISPATCH(geometric_stub, &torch_npusim::geometric_kernel)

}  // namespace at::native
