// SPDX-License-Identifier: BSD-3-Clause
// Memory that CUDA's kernels allocate beside their results, for a dry run that predicts CUDA's
// memory: a table of rows per operator, each with its source. A row allocates on the device's
// allocator and frees when the operator ends; workspaces of cuBLAS stay until the run ends.
//
//   mm, addmm, bmm ...   the workspace of this thread's cuBLAS handle on the current stream
//   sum, max.dim ...     the buffer of a reduction that several blocks share
//   embedding backward, index_put with accumulate   indices, their sort, sums per segment
//
// The order counts: what a kernel takes before its results lies where these would lie.
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
  std::optional<bool> flag;         // the first
  c10::SmallVector<bool, 4> flags;  // all
  std::string word;  // its own: a call on the stack leaves its arguments before its temporaries

  template <class Argument>
  void add(const Argument&) {}
  void add(const bool& given) {
    if (!flag.has_value()) flag = given;
    flags.push_back(given);
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

// CudaTemporaries is that memory for one call, made before the results with as_cuda(). It borrows
// the operands. Blocks that a kernel keeps to its end are freed with it.
class CudaTemporaries {
 public:
  CudaTemporaries(std::string_view op, TensorPointers operands, CallArguments arguments,
                  c10::DeviceIndex device);
  ~CudaTemporaries();
  CudaTemporaries(const CudaTemporaries&) = delete;
  CudaTemporaries& operator=(const CudaTemporaries&) = delete;

  // after_results() goes on with what comes after them.
  void after_results();

  // hold() allocates a block until the end of the call that this thread is in; outside of one it
  // does nothing.
  static void hold(double bytes);

 private:
  std::string_view op_;
  TensorPointers operands_;
  CallArguments arguments_;
  c10::DeviceIndex device_;
  std::vector<c10::DataPtr> held_;
  CudaTemporaries* outer_;
};

// take_sum() takes the buffer of a sum of `input` over `arguments.dims`.
void take_sum(const at::TensorBase& input, const CallArguments& arguments);

// nonzero_temporaries() takes those of nonzero() within another operator, and holds its result.
void nonzero_temporaries(double dims, double found, c10::DeviceIndex device);

// allocated_together() allocates blocks of so many bytes, in this order, and frees them.
void allocated_together(std::initializer_list<double> bytes, c10::DeviceIndex device);

// A row of the table, for its page.
struct TemporariesRow {
  std::string op, what, source, condition;
};
std::vector<TemporariesRow> cuda_temporaries();

}  // namespace torch_npusim
