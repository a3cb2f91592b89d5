// SPDX-License-Identifier: BSD-3-Clause
// Normal numbers and coins, made of the chip's own uniform numbers.
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/normal_ops.h>

#include <cmath>

#include "operators.h"

namespace mychip {
namespace {

struct Arguments {
  Loop loop;
  float* out;
  const float* uniforms;
  std::int64_t count;
  float first, second;  // mean and deviation; probability
};

void normal_kernel(const void* given) {
  const auto& arguments = *static_cast<const Arguments*>(given);
  std::int64_t number = 0;
  walk(arguments.loop, [&](const auto& at) {
    const float radius = 1.0f - arguments.uniforms[number];  // not 0
    const float angle = 6.2831853f * arguments.uniforms[arguments.count + number++];
    const float normal = std::sqrt(-2.0f * std::log(radius)) * std::cos(angle);
    arguments.out[at[0]] = arguments.first + arguments.second * normal;
  });
}

void bernoulli_kernel(const void* given) {
  const auto& arguments = *static_cast<const Arguments*>(given);
  std::int64_t number = 0;
  walk(arguments.loop, [&](const auto& at) {
    arguments.out[at[0]] = arguments.uniforms[number++] < arguments.first ? 1.0f : 0.0f;
  });
}

at::Tensor uniforms(const at::Tensor& self, std::int64_t count,
                    const std::optional<at::Generator>& generator) {
  return at::empty({count}, self.options().dtype(at::kFloat)).uniform_(0.0, 1.0, generator);
}

at::Tensor& normal_(at::Tensor& self, double mean, double deviation,
                    std::optional<at::Generator> generator) {
  TORCH_CHECK(deviation >= 0.0, "normal expects std >= 0.0, but found std ", deviation);
  if (!is_for_chip(self, {})) return ON_CPU(normal_, self, mean, deviation, generator);
  const at::Tensor drawn = uniforms(self, 2 * self.numel(), generator);
  launch(self, &normal_kernel,
         Arguments{loop_over(self, {}), floats(self), read(drawn), self.numel(),
                   static_cast<float>(mean), static_cast<float>(deviation)});
  return self;
}

at::Tensor& bernoulli_(at::Tensor& self, double p, std::optional<at::Generator> generator) {
  TORCH_CHECK(0.0 <= p && p <= 1.0, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  if (!is_for_chip(self, {})) return ON_CPU(bernoulli__float, self, p, generator);
  const at::Tensor drawn = uniforms(self, self.numel(), generator);
  launch(self, &bernoulli_kernel,
         Arguments{loop_over(self, {}), floats(self), read(drawn), self.numel(),
                   static_cast<float>(p), 0.0f});
  return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("normal_", &normal_);
  m.impl("bernoulli_.float", &bernoulli_);
}

}  // namespace
}  // namespace mychip
