// SPDX-License-Identifier: BSD-3-Clause
// One collective on its way to gloo.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/distributed/payload.h"
#include "csrc/distributed/simccl.h"

namespace torch_npusim::distributed {

inline int64_t total_numel(const Tensors& tensors) {
  int64_t numel = 0;
  for (const at::Tensor& tensor : tensors) numel += tensor.numel();
  return numel;
}

struct Simccl::Call {
  c10d::OpType type;
  npusim::Collective collective;
  Tensors reads, writes;
  bool async = true;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  // Hands the bytes to gloo.
  std::function<std::vector<Inner>()> move = nullptr;
  std::function<void()> finish = nullptr;  // after them
  bool prepares = false;                   // the operands are touched before gloo has them
  c10d::ReduceOp::RedOpType asked = c10d::ReduceOp::UNUSED;
  int root = -1;
  int64_t count = 0;
  double bytes = 0;
  int peer = -1;
  std::shared_ptr<Row> row = nullptr;  // nullptr: the group's collectives
  std::optional<at::Device> device = std::nullopt;
  bool blocks_host = false;
};

}  // namespace torch_npusim::distributed
