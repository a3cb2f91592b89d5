// SPDX-License-Identifier: BSD-3-Clause
// A dry run has no values. Where a program asks for one it gets an answer, which is counted with
// its operator and its line in the program.
//
//   a scalar of floating point   1.0           so a loss is finite
//   an integer                   1
//   a boolean                    False, but True for what aten::all or aten::logical_not made
//   what GradScaler looks at     0: no gradient is infinite
//   any of them, each `patience` times at one line: the opposite once, so that loops end
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Scalar.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace torch_npusim {

// answer_of() is the answer of `op` in that dtype, where `usual` is the one that is not the
// opposite. Counted. Call it without any lock: it may take the GIL.
c10::Scalar answer_of(const char* op, at::ScalarType dtype, double usual);

// value_of() is what reading the one element of `tensor` answers.
c10::Scalar value_of(const char* op, const at::TensorBase& tensor);

// ArgumentsAreRight is for a call of torch that checks values of its arguments: while one lives,
// booleans that this thread reads are True, and not counted.
class ArgumentsAreRight {
 public:
  ArgumentsAreRight();
  ~ArgumentsAreRight();
  ArgumentsAreRight(const ArgumentsAreRight&) = delete;
  ArgumentsAreRight& operator=(const ArgumentsAreRight&) = delete;

 private:
  bool outer_;
};

// selected_of() is how many of `elements` a mask selects: the share that the run was given.
int64_t selected_of(const char* op, int64_t elements);
double selected_share();

// count_answer() counts an answer of another kind.
void count_answer(const char* op, double answer, const char* what);

struct DryAnswer {
  std::string op;
  std::string what;  // "value", "elements", ...
  npusim::Site site;
  double answer;  // the latest
  int64_t count;
};
std::vector<DryAnswer> dry_answers();

// begin_answers() forgets all answers. `gather` finds lines of the program.
void begin_answers(double selected_share, int64_t patience, npusim::Site (*gather)(bool may_wait));

// remember_maker() is told which command makes a block; remember_value() says what a tensor's one
// element is, until its block is made anew.
void remember_maker(npusim::Address address, const char* command);
void remember_value(const at::TensorBase& tensor, double value);

}  // namespace torch_npusim
