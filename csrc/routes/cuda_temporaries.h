// SPDX-License-Identifier: BSD-3-Clause
// Memory that CUDA's kernels allocate beside their results, for a dry run that predicts CUDA's
// memory: a table of rows per operator, each with its source. A row allocates on the device's
// allocator and frees when the operator ends; workspaces of cuBLAS stay until the run ends.
//
//   mm, addmm, bmm ...   the workspace of this thread's cuBLAS handle on the current stream
//   sum, max.dim ...     the buffer of a reduction that several blocks share
//   embedding backward, index_put with accumulate   indices, their sort, sums per segment
#pragma once

#include <ATen/core/TensorBase.h>

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "csrc/launch/op_traits.h"

namespace torch_npusim {

// as_cuda() is whether a dry run is on that allocates as CUDA does: off, a load for each launch.
inline std::atomic<bool> g_as_cuda{false};
inline bool as_cuda() noexcept {
  return C10_UNLIKELY(npusim::dry()) && g_as_cuda.load(std::memory_order_relaxed);
}

// begin_cuda_temporaries() begins that, in a dry run; end_cuda_temporaries() frees the workspaces.
void begin_cuda_temporaries();
void end_cuda_temporaries() noexcept;

// Arguments of a call that are no tensors, as far as rows need them: the dimensions of a reduction,
// which are the first argument of that kind, the number behind them, the first flag and string.
struct CallArguments {
  c10::SmallVector<int64_t, 6> dims;  // empty: all
  bool found = false;
  std::optional<int64_t> second;
  std::optional<bool> flag;
  std::string word;  // its own: a call on the stack leaves its arguments before its temporaries

  template <class Argument>
  void add(const Argument&) {}
  void add(const bool& given) {
    if (!flag.has_value()) flag = given;
  }
  void add(const std::string_view& given) {
    if (word.empty()) word = given;
  }
  void add(const int64_t& number) {
    if (!found) {
      dims.push_back(number), found = true;
    } else if (!second.has_value()) {
      second = number;
    }
  }
  void add(const c10::SymInt& given) {
    if (const auto number = given.maybe_as_int(); number.has_value()) add(*number);
  }
  void add(const at::IntArrayRef& given) {
    if (!found) dims.assign(given.begin(), given.end()), found = true;
  }
  void add(const at::OptionalIntArrayRef& given) {
    if (given.has_value()) add(*given);
    found = true;
  }
};

// allocate_temporaries() allocates and frees what CUDA's kernel for `op` needs for the operands;
// call it with as_cuda(), after the results were made.
void allocate_temporaries(std::string_view op, TensorPointers operands,
                          const CallArguments& arguments, c10::DeviceIndex device);

// allocated_together() allocates blocks of so many bytes, in this order, and frees them.
void allocated_together(std::initializer_list<double> bytes, c10::DeviceIndex device);

// A row of the table, for its page.
struct TemporariesRow {
  std::string op, what, source, condition;
};
std::vector<TemporariesRow> cuda_temporaries();

}  // namespace torch_npusim
