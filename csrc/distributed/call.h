// SPDX-License-Identifier: BSD-3-Clause
// One collective on its way to the transport.
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
  std::function<std::vector<Inner>()> move = nullptr;  // hands the bytes to the transport
  std::function<void()> finish = nullptr;              // after them
  // The operands are touched in their turn only: not when the transport is asked, not when it is
  // waited for. tests/distributed/test_orders.py tells where that is not so.
  bool queued = false;
  c10d::ReduceOp::RedOpType asked = c10d::ReduceOp::UNUSED;
  int root = -1;
  int64_t count = 0;
  double bytes = 0;
  std::vector<int64_t> sends = {}, expects = {};  // all_to_all: bytes for and from each rank
  int peer = -1;
  std::shared_ptr<Row> row = nullptr;  // nullptr: the group's collectives
  std::optional<at::Device> device = std::nullopt;
  bool blocks_host = false;
};

}  // namespace torch_npusim::distributed
