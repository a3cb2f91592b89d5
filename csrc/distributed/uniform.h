// SPDX-License-Identifier: BSD-3-Clause
// UniformRanks: the transport of a group whose other ranks have no process. Each of those ranks
// counts as a copy of this one, so its operands are known.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace torch_npusim::distributed {

// Takes flat tensors of the host, as gloo does here. A sum is a multiple of this rank's operand, a
// gathered tensor repeats it, a received tensor is zero. Every call returns a work that has ended.
class UniformRanks final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Done = c10::intrusive_ptr<c10d::Work>;
  UniformRanks(int rank, int size) : Backend(rank, size) {}

  Done broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Done allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Done reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Done allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Done _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Done gather(std::vector<Tensors>& outputs, Tensors& inputs,
              const c10d::GatherOptions& options) override;
  Done scatter(Tensors& outputs, std::vector<Tensors>& inputs,
               const c10d::ScatterOptions& options) override;
  Done reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Done _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Done alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_counts,
                     std::vector<int64_t>& input_counts,
                     const c10d::AllToAllOptions& options) override;
  Done send(Tensors& tensors, int to, int tag) override;
  Done recv(Tensors& tensors, int from, int tag) override;
  Done barrier(const c10d::BarrierOptions& options) override;

 private:
  void reduce_in_place(at::Tensor values, const c10d::ReduceOp& op) const;
};

}  // namespace torch_npusim::distributed
