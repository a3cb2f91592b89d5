// SPDX-License-Identifier: BSD-3-Clause
// How values are spread that a dry run does not know. The router of a mixture of experts gives each
// expert a part of the tokens, and the parts add up:
//
//   labels   topk, argmax, multinomial, random_(0, k): numbers below k, each as often
//   marks    labels == e, one_hot(labels), zeros.scatter(dim, labels, x): of T marks, expert e has
//            T / k, and one more if e < T % k
//
// Views of marks know by their strides which experts they show. Sums of marks become known values.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include <optional>
#include <string_view>

namespace torch_npusim {

struct Spread {
  bool labels = false;
  bool inverted = false;  // marks are the zeros
  int64_t classes = 1;    // each as often
  double many = 0;        // marks of all classes together, by elements of one; 0: no marks
  int64_t chosen = 0;     // the class, of a storage that has one
  int64_t width = 0;      // else size and stride of the dimension of classes
  int64_t stride = 0;
};

// evenly() is the part of one class.
int64_t evenly(int64_t total, int64_t classes, int64_t chosen);

// marks_in() is how many elements of the view are not zero. Nothing for labels, and for views that
// cut through the classes.
std::optional<int64_t> marks_in(const Spread& spread, const at::TensorBase& view);

// The result of a call by its operands, which is asked before the call.
struct Spreading {
  Spread spread;
  int64_t dim = -1;        // of classes in the result; its stride is known after the call
  std::size_t result = 0;  // which
  at::Tensor values;       // or the values, flat
};
using SpreadOf = c10::function_ref<std::optional<Spread>(const at::Tensor&)>;
using SpreadRule = std::optional<Spreading> (*)(const char* op, c10::ArrayRef<c10::IValue> inputs,
                                                SpreadOf spread_of);

// spread_rule() is the rule of an operator of aten, "name.overload"; nullptr without one.
SpreadRule spread_rule(std::string_view op);

}  // namespace torch_npusim
