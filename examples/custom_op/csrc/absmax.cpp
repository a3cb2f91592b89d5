// SPDX-License-Identifier: BSD-3-Clause
// npusim::absmax, the largest magnitude: a kernel with another algorithm for some dtypes, chosen
// from a table. NaN anywhere gives NaN.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <torch_npusim/kernel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace {

using at::Tensor;
using Command = void (*)(const Tensor& x, const Tensor& result);

template <class T>
void by_value(const Tensor& x, const Tensor& result) {
  torch_npusim::Kernel kernel("npusim::absmax");
  const T* in = kernel.reads<T>(x);
  T* out = kernel.writes<T>(result);
  const int64_t n = x.numel();
  kernel.launch(/*flops=*/static_cast<double>(n), [=] {
    T most = 0;
    int nan = 0;
#pragma omp simd reduction(max : most) reduction(| : nan)
    for (int64_t i = 0; i < n; ++i) {
      most = std::max(most, std::abs(in[i]));
      nan |= in[i] != in[i];
    }
    *out = nan != 0 ? std::numeric_limits<T>::quiet_NaN() : most;
  });
}

// Without their sign bits, 16-bit floats are ordered like integers, infinity and NaN on top: no
// element has to be widened.
template <class T>
void by_bits(const Tensor& x, const Tensor& result) {
  torch_npusim::Kernel kernel("npusim::absmax");
  const T* in = kernel.reads<T>(x);
  T* out = kernel.writes<T>(result);
  const int64_t n = x.numel();
  kernel.launch(/*flops=*/static_cast<double>(n), [=] {
    std::uint16_t most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; ++i) {
      most = std::max(most, static_cast<std::uint16_t>(in[i].x & 0x7fff));
    }
    *out = T(most, T::from_bits());
  });
}

// One line per dtype; a dtype that is not in the table is refused by name.
struct Entry {
  at::ScalarType dtype;
  Command run;
};
constexpr std::array<Entry, 4> kTable{{
    {at::kDouble, &by_value<double>},
    {at::kFloat, &by_value<float>},
    {at::kHalf, &by_bits<at::Half>},
    {at::kBFloat16, &by_bits<at::BFloat16>},
}};

Tensor absmax(const Tensor& x) {
  for (const Entry& entry : kTable) {
    if (entry.dtype != x.scalar_type()) continue;
    const Tensor result = at::empty({}, x.options());
    entry.run(x.contiguous(), result);
    return result;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "npusim::absmax expects float64, float32, float16 or ",
                              "bfloat16, but got ", x.scalar_type());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(npusim, m) { m.def("absmax(Tensor x) -> Tensor"); }

TORCH_LIBRARY_IMPL(npusim, PrivateUse1, m) { m.impl("absmax", &absmax); }
