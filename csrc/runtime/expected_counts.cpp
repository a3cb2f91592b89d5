// SPDX-License-Identifier: BSD-3-Clause
// Rules per operator, and the arithmetic of marks.
#include "csrc/runtime/expected_counts.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "csrc/runtime/dry_answers.h"
#include "csrc/runtime/known_values.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using Inputs = c10::ArrayRef<c10::IValue>;
using Made = std::optional<Spreading>;

constexpr int64_t kMostClasses = 2048;

// Where a view of marks has its classes.
struct Shown {
  int64_t dim = -1;  // -1: one class
  int64_t first = 0, count = 1;
  int64_t elements = 0;  // of each class
};

std::optional<Shown> shown_by(const Spread& spread, const at::TensorBase& view) {
  Shown shown{-1, spread.chosen, 1, view.numel()};
  if (spread.width == 0) return shown;
  shown.first = view.storage_offset() / spread.stride % spread.width;
  for (int64_t d = 0; d < view.dim(); ++d) {
    const int64_t stride = view.stride(d), size = view.size(d);
    if (size == 1 || stride % (spread.stride * spread.width) == 0) continue;
    if (stride == spread.stride) {
      shown.dim = d, shown.count = size;
    } else if (stride > spread.stride) {
      return std::nullopt;
    }
  }
  if (shown.first + shown.count > spread.width) return std::nullopt;
  shown.elements /= std::max<int64_t>(shown.count, 1);
  return shown;
}

int64_t marks_of(const Spread& spread, const Shown& shown, int64_t chosen) {
  const auto all = std::llround(spread.many * static_cast<double>(shown.elements));
  const int64_t count = std::min(evenly(all, spread.classes, chosen), shown.elements);
  return spread.inverted ? shown.elements - count : count;
}

const Tensor* tensor_at(Inputs inputs, std::size_t i) {
  const bool given = i < inputs.size() && inputs[i].isTensor() && inputs[i].toTensor().defined();
  return given ? &inputs[i].toTensor() : nullptr;
}

std::optional<Spread> marks_at(Inputs inputs, std::size_t i, SpreadOf spread_of) {
  const Tensor* tensor = tensor_at(inputs, i);
  if (tensor == nullptr) return std::nullopt;
  const auto spread = spread_of(*tensor);
  return spread.has_value() && !spread->labels ? spread : std::nullopt;
}

bool known(const Tensor& tensor) { return known_values_of(tensor).defined(); }

std::optional<Spread> labels_at(Inputs inputs, std::size_t i, SpreadOf spread_of) {
  const Tensor* tensor = tensor_at(inputs, i);
  if (tensor == nullptr) return std::nullopt;
  const auto spread = spread_of(*tensor);
  return spread.has_value() && spread->labels ? spread : std::nullopt;
}

Made labels_below(int64_t classes, std::size_t result = 0) {
  if (classes < 1) return std::nullopt;
  Spreading made;
  made.spread.labels = true;
  made.spread.classes = classes;
  made.result = result;
  return made;
}

// --- labels

// Indices into a dimension, which is argument `at`.
template <std::size_t at, std::size_t result>
Made indices_into(const char* /*op*/, Inputs inputs, SpreadOf /*spread_of*/) {
  const Tensor& self = inputs[0].toTensor();
  if (!inputs[at].isInt() || self.dim() == 0) return std::nullopt;
  return labels_below(self.size(at::maybe_wrap_dim(inputs[at].toInt(), self.dim())), result);
}

Made drawn(const char* /*op*/, Inputs inputs, SpreadOf /*spread_of*/) {
  const Tensor& self = inputs[0].toTensor();
  return self.dim() == 0 ? std::nullopt : labels_below(self.size(-1));
}

Made drawn_below(const char* /*op*/, Inputs inputs, SpreadOf /*spread_of*/) {
  const bool two = inputs.size() > 3;
  if (!inputs[two ? 2 : 1].isInt() || (two && inputs[1].toInt() != 0)) return std::nullopt;
  return labels_below(inputs[two ? 2 : 1].toInt());
}

Made remainder(const char* /*op*/, Inputs inputs, SpreadOf /*spread_of*/) {
  const c10::Scalar by = inputs[1].toScalar();
  return by.isIntegral(false) ? labels_below(by.toLong()) : std::nullopt;
}

Made chosen_labels(const char* /*op*/, Inputs inputs, SpreadOf spread_of) {
  const auto labels = labels_at(inputs, 0, spread_of);
  return labels.has_value() ? labels_below(labels->classes) : std::nullopt;
}

template <bool largest>
Made extreme(const char* op, Inputs inputs, SpreadOf spread_of) {
  const auto labels = labels_at(inputs, 0, spread_of);
  if (!labels.has_value() || inputs.size() != 1) return std::nullopt;
  Spreading made;
  const double usual = largest ? static_cast<double>(labels->classes - 1) : 0;
  const c10::Scalar value = answer_of(op, at::kLong, usual);
  made.values = at::full({1}, value, at::device(at::kCPU).dtype(at::kLong));
  return made;
}

Made counted(const char* op, Inputs inputs, SpreadOf spread_of) {
  const Tensor& self = inputs[0].toTensor();
  const bool bins = inputs.size() == 4;  // histc
  const bool weighted = !bins && tensor_at(inputs, 1) != nullptr;
  const int64_t length = inputs[bins ? 1 : 2].toInt();
  if (!c10::isIntegralType(self.scalar_type(), false) || weighted || length < 1 ||
      length > kMostClasses) {
    return std::nullopt;
  }
  const auto labels = labels_at(inputs, 0, spread_of);
  const int64_t classes = labels.has_value() ? std::min(labels->classes, length) : length;
  Spreading made;
  made.values = at::empty({length}, at::device(at::kCPU).dtype(at::kLong));
  for (int64_t i = 0; i < length; ++i) {
    made.values.data_ptr<int64_t>()[i] = evenly(self.numel(), classes, i);
  }
  if (bins) count_answer(op, static_cast<double>(length), "elements");
  return made;
}

// --- marks

Made zeros(const char* /*op*/, Inputs inputs, SpreadOf /*spread_of*/) {
  const bool fills = inputs.size() == 2;
  const bool other = fills && (!inputs[1].isScalar() || inputs[1].toScalar().toDouble() != 0);
  return other ? std::nullopt : Made(Spreading());
}

// A check of numbers is no mask: it passes, as the answers of a dry run say.
Made check(const char* /*op*/, Inputs /*inputs*/, SpreadOf /*spread_of*/) {
  Spreading made;
  made.spread.classes = 0;
  return made;
}

bool is_check(const std::optional<Spread>& spread) { return spread && spread->classes == 0; }

Made checks(const char* op, Inputs inputs, SpreadOf spread_of) {
  const bool either =
      is_check(marks_at(inputs, 0, spread_of)) || is_check(marks_at(inputs, 1, spread_of));
  return either ? check(op, inputs, spread_of) : std::nullopt;
}

Made one_hot(const char* /*op*/, Inputs inputs, SpreadOf spread_of) {
  const auto labels = labels_at(inputs, 0, spread_of);
  const int64_t width = inputs[1].toInt();
  if (width == 0) return std::nullopt;
  Spreading made;
  made.spread.classes = labels.has_value() ? labels->classes : std::max<int64_t>(width, 1);
  made.spread.many = 1;
  made.dim = inputs[0].toTensor().dim();
  return made;
}

bool is_zero(const Tensor& tensor, SpreadOf spread_of) {
  if (const auto spread = spread_of(tensor))
    return !spread->labels && spread->classes > 0 && spread->many == 0;
  const Tensor values = known_values_of(tensor);
  return values.defined() && !values.any().item<bool>();
}

Made scattered(const char* /*op*/, Inputs inputs, SpreadOf spread_of) {
  const Tensor &self = inputs[0].toTensor(), &index = inputs[2].toTensor();
  const auto labels = labels_at(inputs, 2, spread_of);
  const bool nothing = inputs[3].isScalar() && inputs[3].toScalar().toDouble() == 0;
  if (!labels.has_value() || nothing || self.dim() == 0 || !is_zero(self, spread_of)) {
    return std::nullopt;
  }
  Spreading made;
  made.dim = at::maybe_wrap_dim(inputs[1].toInt(), self.dim());
  made.spread.classes = std::min(labels->classes, self.size(made.dim));
  const auto elements =
      static_cast<double>(self.numel() / std::max<int64_t>(self.size(made.dim), 1));
  made.spread.many = static_cast<double>(index.numel()) / std::max(elements, 1.0);
  return made;
}

template <bool inverted>
Made equal_number(const char* /*op*/, Inputs inputs, SpreadOf spread_of) {
  const auto labels = labels_at(inputs, 0, spread_of);
  const c10::Scalar number = inputs[1].toScalar();
  if (!labels.has_value() || !number.isIntegral(false)) return std::nullopt;
  Spreading made;
  made.spread.classes = labels->classes;
  made.spread.many = 1;
  made.spread.chosen = number.toLong();
  made.spread.inverted = inverted;
  return made;
}

// With one number, or with arange() along one dimension.
Made equal_numbers(const char* /*op*/, Inputs inputs, SpreadOf spread_of) {
  const std::size_t which = labels_at(inputs, 0, spread_of).has_value() ? 0 : 1;
  const auto labels = labels_at(inputs, which, spread_of);
  if (!labels.has_value()) return std::nullopt;
  const Tensor &self = inputs[which].toTensor(), &other = inputs[1 - which].toTensor();
  const Tensor values = other.is_cpu() ? other : known_values_of(other);
  if (!values.defined() || !c10::isIntegralType(values.scalar_type(), false)) return std::nullopt;
  Spreading made;
  made.spread.classes = labels->classes;
  made.spread.many = 1;
  if (values.numel() == 1) {
    made.spread.chosen = values.item<int64_t>();
    return made;
  }
  const Tensor flat = values.flatten().to(at::kLong);
  const int64_t rank = std::max(self.dim(), values.dim());
  if (!flat.equal(at::arange(flat.numel(), at::device(at::kCPU)))) return std::nullopt;
  for (int64_t d = 0; d < values.dim(); ++d) {
    if (values.size(d) == flat.numel()) made.dim = rank - values.dim() + d;
  }
  const int64_t own = made.dim - (rank - self.dim());
  if (made.dim < 0 || (own >= 0 && self.size(own) != 1)) return std::nullopt;
  return made;
}

// --- marks of marks

Made kept(const Spread& spread, const Tensor& tensor) {
  if (spread.labels) return labels_below(spread.classes);
  const auto shown = shown_by(spread, tensor);
  if (!shown.has_value()) return std::nullopt;
  Spreading made;
  made.spread = spread;
  made.spread.width = made.spread.stride = 0;
  made.spread.chosen = shown->first;
  made.dim = shown->dim;
  // A range of classes keeps its own part only from the first on.
  if (shown->dim >= 0 && shown->first != 0) return std::nullopt;
  return made;
}

// Marks of one class, by an index that is known, or all of them in another order.
Made indexed(const char* op, Inputs inputs, SpreadOf spread_of) {
  const Tensor& self = inputs[0].toTensor();
  const auto marks = marks_at(inputs, 0, spread_of);
  const auto shown = marks.has_value() ? shown_by(*marks, self) : std::nullopt;
  if (!shown.has_value()) return chosen_labels(op, inputs, spread_of);
  const auto list = inputs[1].toListRef();
  const auto given = [](const c10::IValue& item) {
    return item.isTensor() && item.toTensor().defined();
  };
  const auto found = std::find_if(list.begin(), list.end(), given);
  if (std::count_if(list.begin(), list.end(), given) != 1) return std::nullopt;
  const Tensor& index = found->toTensor();
  if (!c10::isIntegralType(index.scalar_type(), false)) return std::nullopt;
  Made made = kept(*marks, self);
  if (found - list.begin() != shown->dim) {
    if (made.has_value() && shown->dim > found - list.begin()) made->dim += index.dim() - 1;
    return made;
  }
  const Tensor values = index.is_cpu() ? index : known_values_of(index);
  if (!made.has_value() || !values.defined() || values.numel() != 1) return std::nullopt;
  made->dim = -1;
  made->spread.chosen = shown->first + values.item<int64_t>();
  return made;
}

Made joined(const char* /*op*/, Inputs inputs, SpreadOf spread_of) {
  int64_t classes = 0;
  for (const c10::IValue& item : inputs[0].toListRef()) {
    const auto spread = spread_of(item.toTensor());
    if (!spread.has_value() || !spread->labels) return std::nullopt;
    classes = std::max(classes, spread->classes);
  }
  return labels_below(classes);
}

template <std::size_t from>
Made copied(const char* /*op*/, Inputs inputs, SpreadOf spread_of) {
  const Tensor* tensor = tensor_at(inputs, from);
  if (tensor == nullptr || tensor->sizes() != inputs[0].toTensor().sizes()) return std::nullopt;
  const auto spread = spread_of(*tensor);
  return spread.has_value() ? kept(*spread, *tensor) : std::nullopt;
}

// Greater than zero, or not zero; of labels: whether they are that number.
template <bool not_equal>
Made against(const char* op, Inputs inputs, SpreadOf spread_of) {
  const auto marks = marks_at(inputs, 0, spread_of);
  if (!marks.has_value()) return not_equal ? equal_number<true>(op, inputs, spread_of) : Made();
  return inputs[1].toScalar().toDouble() == 0 ? kept(*marks, inputs[0].toTensor()) : std::nullopt;
}

// What is not known does not take marks away: the most that there can be.
Made product(const char* /*op*/, Inputs inputs, SpreadOf spread_of) {
  const Tensor *first = tensor_at(inputs, 0), *second = tensor_at(inputs, 1);
  if (first == nullptr || second == nullptr) return std::nullopt;
  if (auto marks = marks_at(inputs, 0, spread_of); marks && first->dim() >= second->dim()) {
    return kept(*marks, *first);
  }
  if (auto marks = marks_at(inputs, 1, spread_of); marks && second->dim() >= first->dim()) {
    return kept(*marks, *second);
  }
  return std::nullopt;
}

Made negated(const char* /*op*/, Inputs inputs, SpreadOf spread_of) {
  const auto marks = marks_at(inputs, 0, spread_of);
  if (!marks.has_value()) return std::nullopt;
  Made made = kept(*marks, inputs[0].toTensor());
  if (made.has_value()) made->spread.inverted = !made->spread.inverted;
  return made;
}

// Sums, and whether there are any: a number for each class where nothing else is left, else marks.
template <bool any>
Made reduced(const char* op, Inputs inputs, SpreadOf spread_of) {
  const Tensor& self = inputs[0].toTensor();
  auto marks = marks_at(inputs, 0, spread_of);
  const bool guess = !marks.has_value() && !any && self.scalar_type() == at::kBool && !known(self);
  if (guess) {
    marks.emplace();  // a mask that nobody knows: as many as it selects
    marks->many = selected_share();
  }
  if (!marks.has_value() || is_check(marks)) return std::nullopt;
  const auto shown = shown_by(*marks, self);
  if (!shown.has_value() || shown->count > kMostClasses) return std::nullopt;
  std::vector<bool> over(static_cast<std::size_t>(std::max<int64_t>(self.dim(), 1)), true);
  bool keepdim = false;
  if (inputs.size() > 1 && (inputs[1].isInt() || inputs[1].isIntList())) {
    std::vector<int64_t> dims;
    if (inputs[1].isInt()) dims.push_back(inputs[1].toInt());
    if (inputs[1].isIntList()) dims = inputs[1].toIntVector();
    if (!dims.empty()) std::fill(over.begin(), over.end(), false);
    for (const int64_t d : dims) {
      over[static_cast<std::size_t>(at::maybe_wrap_dim(d, self.dim()))] = true;
    }
    keepdim = inputs.size() > 2 && inputs[2].isBool() && inputs[2].toBool();
  }
  int64_t others = 1, left = 1, before = 0;
  for (int64_t d = 0; d < self.dim(); ++d) {
    const bool goes = over[static_cast<std::size_t>(d)];
    if (d < shown->dim && (!goes || keepdim)) ++before;
    if (d != shown->dim) (goes ? others : left) *= self.size(d);
  }
  const bool has_classes = shown->dim >= 0 && !over[static_cast<std::size_t>(shown->dim)];
  Spreading made;
  int64_t all = 0;
  for (int64_t i = 0; i < shown->count; ++i) all += marks_of(*marks, *shown, shown->first + i);
  const bool each = !any && !has_classes && all >= left && left <= kMostClasses;
  if (left == 1 || each) {
    const int64_t size = has_classes ? shown->count : left;
    made.values = at::empty({size}, at::device(at::kCPU).dtype(at::kLong));
    for (int64_t i = 0; i < size; ++i) {
      made.values.data_ptr<int64_t>()[i] =
          has_classes ? marks_of(*marks, *shown, shown->first + i) : evenly(all, size, i);
    }
    if (guess || size == 1) {  // a loop may wait for another one
      const c10::Scalar answer = answer_of(op, at::kLong, static_cast<double>(all));
      if (answer.toLong() != all) made.values.fill_(answer);
    } else {
      count_answer(op, static_cast<double>(all), "elements");
    }
    if (any) made.values = made.values.ne(0);
    return made;
  }
  if (marks->inverted || (has_classes && shown->first != 0)) return std::nullopt;
  const double many = marks->many * static_cast<double>(others);
  if (shown->dim >= 0 && !has_classes) {
    made.spread.many = std::min(1.0, many);
    return made;
  }
  made.spread = *marks;
  made.spread.width = made.spread.stride = 0;
  made.spread.chosen = shown->first;
  made.spread.many = std::min(many, static_cast<double>(marks->classes));
  if (has_classes) made.dim = before;
  return made;
}

}  // namespace

int64_t evenly(int64_t total, int64_t classes, int64_t chosen) {
  if (chosen < 0 || chosen >= classes) return 0;
  return total / classes + (chosen < total % classes ? 1 : 0);
}

std::optional<int64_t> marks_in(const Spread& spread, const at::TensorBase& view) {
  if (spread.labels || spread.classes == 0) return std::nullopt;
  const auto shown = shown_by(spread, view);
  if (!shown.has_value()) return std::nullopt;
  int64_t all = 0;
  for (int64_t i = 0; i < shown->count; ++i) all += marks_of(spread, *shown, shown->first + i);
  return all;
}

SpreadRule spread_rule(std::string_view op) {
  static const auto* const kRules = new std::unordered_map<std::string_view, SpreadRule>{
      {"topk.", &indices_into<2, 1>},
      {"argmax.", &indices_into<1, 0>},
      {"argmin.", &indices_into<1, 0>},
      {"max.dim", &indices_into<1, 1>},
      {"min.dim", &indices_into<1, 1>},
      {"sort.", &indices_into<1, 1>},
      {"sort.stable", &indices_into<2, 1>},
      {"argsort.", &indices_into<1, 0>},
      {"argsort.stable", &indices_into<2, 0>},
      {"multinomial.", &drawn},
      {"random_.from", &drawn_below},
      {"random_.to", &drawn_below},
      {"remainder.Scalar", &remainder},
      {"index.Tensor", &indexed},
      {"index_select.", &chosen_labels},
      {"gather.", &chosen_labels},
      {"cat.", &joined},
      {"stack.", &joined},
      {"max.", &extreme<true>},
      {"min.", &extreme<false>},
      {"bincount.", &counted},
      {"histc.", &counted},
      {"zero_.", &zeros},
      {"fill_.Scalar", &zeros},
      {"isnan.", &check},
      {"isinf.", &check},
      {"isfinite.", &check},
      {"logical_or.", &checks},
      {"bitwise_or.Tensor", &checks},
      {"one_hot.", &one_hot},
      {"scatter.value", &scattered},
      {"scatter.src", &scattered},
      {"scatter_.value", &scattered},
      {"scatter_.src", &scattered},
      {"eq.Scalar", &equal_number<false>},
      {"eq.Tensor", &equal_numbers},
      {"ne.Scalar", &against<true>},
      {"gt.Scalar", &against<false>},
      {"clone.", &copied<0>},
      {"_to_copy.", &copied<0>},
      {"copy_.", &copied<1>},
      {"mul.Tensor", &product},
      {"logical_and.", &product},
      {"bitwise_and.Tensor", &product},
      {"logical_not.", &negated},
      {"bitwise_not.", &negated},
      {"sum.dim_IntList", &reduced<false>},
      {"count_nonzero.dim_IntList", &reduced<false>},
      {"any.", &reduced<true>},
      {"any.dim", &reduced<true>},
      {"any.dims", &reduced<true>},
  };
  const auto found = kRules->find(op);
  return found == kRules->end() ? nullptr : found->second;
}

}  // namespace torch_npusim
