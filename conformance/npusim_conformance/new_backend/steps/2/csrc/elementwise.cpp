// SPDX-License-Identifier: BSD-3-Clause
// One kernel per arithmetic operator, a line of the table each; torch makes the functional and the
// in-place form of those that are structured.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/threshold_backward_ops.h>

#include <cmath>

#include "operators.h"

namespace mychip {
namespace {

struct Arguments {
  Loop loop;
  float* out;
  const float *a, *b;
  float number;
};

using Compute = float (*)(float a, float b, float number);

template <Compute compute>
void kernel(const void* given) {
  const auto& arguments = *static_cast<const Arguments*>(given);
  walk(arguments.loop, [&](const auto& at) {
    const float b = arguments.b == nullptr ? 0.0f : arguments.b[at[2]];
    arguments.out[at[0]] = compute(arguments.a[at[1]], b, arguments.number);
  });
}

template <Compute compute>
at::Tensor& binary(const at::Tensor& self, const at::Tensor& other, at::Tensor& out,
                   float number = 0.0f) {
  resize_out(out, at::infer_size(self.sizes(), other.sizes()), self);
  const at::Tensor a = there(self, out), b = there(other, out);
  launch(out, &kernel<compute>,
         Arguments{loop_over(out, {a, b}), floats(out), read(a), read(b), number});
  return out;
}

template <Compute compute>
at::Tensor& unary(const at::Tensor& self, at::Tensor& out) {
  resize_out(out, self.sizes());
  const at::Tensor a = there(self, out);
  launch(out, &kernel<compute>, Arguments{loop_over(out, {a}), floats(out), read(a), nullptr, 0});
  return out;
}

float sub(float a, float b, float alpha) { return a - alpha * b; }
float mul(float a, float b, float) { return a * b; }
float div(float a, float b, float) { return a / b; }
float neg(float a, float, float) { return -a; }
float exp_of(float a, float, float) { return std::exp(a); }
float sqrt_of(float a, float, float) { return std::sqrt(a); }
float relu_of(float a, float, float) { return a < 0.0f ? 0.0f : a; }  // NaN stays
float pass(float grad, float self, float threshold) { return self <= threshold ? 0.0f : grad; }

at::Tensor& sub_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                    at::Tensor& out) {
  if (!is_for_chip(out, {self, other})) return ON_CPU(sub_out, self, other, alpha, out);
  return binary<&sub>(self, other, out, alpha.toFloat());
}

// The same for every operator of these forms.
#define BINARY(name, compute)                                                          \
  at::Tensor& name(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) { \
    if (!is_for_chip(out, {self, other})) return ON_CPU(name, self, other, out);       \
    return binary<&compute>(self, other, out);                                         \
  }
#define UNARY(name, compute)                                       \
  at::Tensor& name(const at::Tensor& self, at::Tensor& out) {      \
    if (!is_for_chip(out, {self})) return ON_CPU(name, self, out); \
    return unary<&compute>(self, out);                             \
  }
BINARY(mul_out, mul)
BINARY(div_out, div)
UNARY(neg_out, neg)
UNARY(exp_out, exp_of)
UNARY(sqrt_out, sqrt_of)

at::Tensor relu(const at::Tensor& self) {
  at::Tensor out = at::empty_like(self);
  if (!is_for_chip(out, {self})) return ON_CPU(relu, self);
  return unary<&relu_of>(self, out);
}

at::Tensor& relu_(at::Tensor& self) {
  return is_for_chip(self, {}) ? unary<&relu_of>(self, self) : ON_CPU(relu_, self);
}

at::Tensor& threshold_backward(const at::Tensor& grad, const at::Tensor& self,
                               const at::Scalar& threshold, at::Tensor& out) {
  if (!is_for_chip(out, {grad, self})) {
    return ON_CPU(threshold_backward_grad_input, grad, self, threshold, out);
  }
  return binary<&pass>(grad, self, out, threshold.toFloat());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("sub.out", &sub_out);
  m.impl("mul.out", &mul_out);
  m.impl("div.out", &div_out);
  m.impl("neg.out", &neg_out);
  m.impl("exp.out", &exp_out);
  m.impl("sqrt.out", &sqrt_out);
  m.impl("relu", &relu);
  m.impl("relu_", &relu_);
  m.impl("threshold_backward.grad_input", &threshold_backward);
}

}  // namespace
}  // namespace mychip
