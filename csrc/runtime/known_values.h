// SPDX-License-Identifier: BSD-3-Clause
// Known values: a dry run computes nothing, but small tensors of integers and booleans whose
// operands are all known keep their values on the host, so that a loop ends as it would. A tensor
// is unknown from the first operand that is unknown, or the first write that nobody followed.
//
//   ones(2), arange(4), tensor([7])      known: written by the host
//   known & known, known.max() == 0      known: computed on the host beside the command
//   unknown | True, unknown & False      known
//   argmax(logits), index_put_, ...      unknown
//
// Bytes are kept per storage, so views see writes through each other.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_npusim {

// begin_known_values() begins to follow operators; end_known_values() ends that and forgets all.
void begin_known_values();
void end_known_values();

// known_values_of() is a tensor of the host with the values of `tensor`; undefined if they are not
// known. Do not write to it.
at::Tensor known_values_of(const at::TensorBase& tensor);

// selected_in() is how many elements of a mask are true: as many as are known to be, the part of a
// mask that shares its elements with others (expected_counts.h), or selected_of(). The last two
// count.
int64_t selected_in(const char* op, const at::TensorBase& mask);

// classes_in() is how many numbers there are among labels (expected_counts.h); 0 of other tensors.
int64_t classes_in(const at::TensorBase& labels);

// know_values() makes `values`, of the host, those of a tensor that was just written as a whole;
// without a tensor in `values`, or where it cannot be followed, the tensor becomes unknown.
void know_values(const at::TensorBase& tensor, const at::Tensor& values);

// forget_values() makes a tensor, a storage or all of them unknown, before a write that no operator
// makes.
void forget_values(const at::TensorBase& tensor);
void forget_values(c10::StorageImpl& storage);
void forget_values() noexcept;

}  // namespace torch_npusim
