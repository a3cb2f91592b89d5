// SPDX-License-Identifier: BSD-3-Clause
// npusim::layer_norm and its backward: schemas and device kernels. The meta kernels and the
// autograd formula are in npusim_custom_op/layer_norm.py.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <torch_npusim/kernel.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

namespace {

using at::Tensor;

template <class T>
using Math = at::opmath_type<T>;  // float for half and bfloat16, else T

// Row gives the elements of one row in the type to calculate in: the row itself where that is its
// own type, a widened copy for half and bfloat16. The choice is made when T is compiled.
template <class T>
class Row {
 public:
  explicit Row(int64_t n) : widened_(std::is_same_v<T, Math<T>> ? 0 : n) {}

  const Math<T>* load(const T* row, int64_t n) {
    if constexpr (std::is_same_v<T, Math<T>>) {
      return row;
    } else {
      for (int64_t i = 0; i < n; ++i) widened_[i] = static_cast<Math<T>>(row[i]);
      return widened_.data();
    }
  }

 private:
  std::vector<Math<T>> widened_;
};

template <class A>
A mean_of(const A* x, int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum / static_cast<A>(n);
}

// How a batch of rows is shared out: at most one part per thread, none too small to be worth one.
constexpr int64_t kElementsPerPart = 32768;

struct Rows {
  int64_t rows;
  int64_t columns;
  int64_t parts;

  Rows(int64_t rows, int64_t columns)
      : rows(rows),
        columns(columns),
        parts(std::clamp<int64_t>(rows * columns / kElementsPerPart, 1, at::get_num_threads())) {}

  int64_t begin(int64_t part) const { return rows * part / parts; }
};

template <class T>
void forward_rows(const T* x, const T* weight, const T* bias, T* y, int64_t begin, int64_t end,
                  int64_t n, double eps) {
  using A = Math<T>;
  Row<T> row(n), weight_row(n), bias_row(n);
  const A* w = weight_row.load(weight, n);
  const A* b = bias_row.load(bias, n);
  for (int64_t r = begin; r < end; ++r) {
    const A* in = row.load(x + r * n, n);
    const A mean = mean_of(in, n);
    A squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < n; ++i) squares += (in[i] - mean) * (in[i] - mean);
    const A rstd = A(1) / std::sqrt(squares / static_cast<A>(n) + static_cast<A>(eps));
    T* out = y + r * n;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<T>((in[i] - mean) * rstd * w[i] + b[i]);
    }
  }
}

// With h = (x - mean) * rstd and g = grad * weight, over each row:
//   dx = rstd * (g - mean(g) - h * mean(g * h)),   dweight += grad * h,   dbias += grad.
// The row's moments are calculated anew: it is in the cache anyway, and nothing has to be saved.
template <class T>
void backward_rows(const T* grad, const T* x, const T* weight, T* dx, Math<T>* dweight,
                   Math<T>* dbias, int64_t begin, int64_t end, int64_t n, double eps) {
  using A = Math<T>;
  const A columns = static_cast<A>(n);
  Row<T> row(n), grad_row(n), weight_row(n);
  const A* w = weight_row.load(weight, n);
  std::fill_n(dweight, n, A(0));
  std::fill_n(dbias, n, A(0));
  for (int64_t r = begin; r < end; ++r) {
    const A* in = row.load(x + r * n, n);
    const A* g = grad_row.load(grad + r * n, n);
    const A mean = mean_of(in, n);
    A squares = 0, sum = 0, product = 0;
#pragma omp simd reduction(+ : squares, sum, product)
    for (int64_t i = 0; i < n; ++i) {
      const A d = in[i] - mean;
      squares += d * d;
      sum += g[i] * w[i];
      product += g[i] * w[i] * d;
    }
    const A rstd = A(1) / std::sqrt(squares / columns + static_cast<A>(eps));
    const A offset = sum / columns;
    const A slope = product * rstd / columns;
    T* out = dx + r * n;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const A h = (in[i] - mean) * rstd;
      out[i] = static_cast<T>(rstd * (g[i] * w[i] - offset - h * slope));
      dweight[i] += g[i] * h;
      dbias[i] += g[i];
    }
  }
}

Rows rows_of(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(x.dim() > 0, "npusim::layer_norm expects an input of at least 1 dimension");
  const int64_t columns = x.size(-1);
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == columns,
              "npusim::layer_norm expects a weight of shape [", columns,
              "], the last dimension of its input, but got ", weight.sizes());
  return {columns == 0 ? 0 : x.numel() / columns, columns};
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const Rows shape = rows_of(x, weight);
  TORCH_CHECK(bias.sizes() == weight.sizes(), "npusim::layer_norm expects a bias of shape ",
              weight.sizes(), ", but got ", bias.sizes());
  const Tensor y = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "layer_norm", [&] {
    torch_npusim::Kernel kernel("npusim::layer_norm");
    const auto* in = kernel.reads<scalar_t>(x.contiguous());
    const auto* w = kernel.reads<scalar_t>(weight.contiguous());
    const auto* b = kernel.reads<scalar_t>(bias.contiguous());
    auto* out = kernel.writes<scalar_t>(y);
    kernel.launch(/*flops=*/8.0 * static_cast<double>(x.numel()), [=] {
      at::parallel_for(0, shape.parts, 1, [&](int64_t first, int64_t last) {
        forward_rows(in, w, b, out, shape.begin(first), shape.begin(last), shape.columns, eps);
      });
    });
  });
  return y;
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad, const Tensor& x,
                                                       const Tensor& weight, double eps) {
  const Rows shape = rows_of(x, weight);
  TORCH_CHECK(grad.sizes() == x.sizes(), "npusim::layer_norm_backward expects a gradient of shape ",
              x.sizes(), ", but got ", grad.sizes());
  const Tensor dx = at::empty(x.sizes(), x.options());
  const Tensor dweight = at::empty(weight.sizes(), weight.options());
  const Tensor dbias = at::empty(weight.sizes(), weight.options());
  const int64_t n = shape.columns, parts = shape.parts;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "layer_norm", [&] {
    using A = Math<scalar_t>;
    // Each part adds up its own rows: no two threads write to the same sums.
    const Tensor partial =
        at::empty({parts, 2, n}, x.options().dtype(c10::CppTypeToScalarType<A>::value));
    torch_npusim::Kernel kernel("npusim::layer_norm_backward");
    const auto* g = kernel.reads<scalar_t>(grad.contiguous());
    const auto* in = kernel.reads<scalar_t>(x.contiguous());
    const auto* w = kernel.reads<scalar_t>(weight.contiguous());
    auto* out = kernel.writes<scalar_t>(dx);
    auto* out_weight = kernel.writes<scalar_t>(dweight);
    auto* out_bias = kernel.writes<scalar_t>(dbias);
    A* sums = kernel.writes<A>(partial);
    kernel.launch(/*flops=*/20.0 * static_cast<double>(x.numel()), [=] {
      at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
        for (int64_t part = first; part < last; ++part) {
          A* mine = sums + part * 2 * n;
          backward_rows(g, in, w, out, mine, mine + n, shape.begin(part), shape.begin(part + 1), n,
                        eps);
        }
      });
      for (int64_t part = 1; part < parts; ++part) {
        for (int64_t i = 0; i < 2 * n; ++i) sums[i] += sums[part * 2 * n + i];
      }
      for (int64_t i = 0; i < n; ++i) {
        out_weight[i] = static_cast<scalar_t>(sums[i]);
        out_bias[i] = static_cast<scalar_t>(sums[n + i]);
      }
    });
  });
  return {dx, dweight, dbias};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(npusim, m) {
  m.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor");
  m.def(
      "layer_norm_backward(Tensor grad, Tensor x, Tensor weight, float eps)"
      " -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(npusim, PrivateUse1, m) {
  m.impl("layer_norm", &layer_norm);
  m.impl("layer_norm_backward", &layer_norm_backward);
}
