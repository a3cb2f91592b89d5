// SPDX-License-Identifier: BSD-3-Clause
// Every operation is over when it returns.
#include "csrc/distributed/uniform.h"

#include <algorithm>

namespace torch_npusim::distributed {

namespace {

struct Finished final : c10d::Work {
  Finished() { finish(); }
};
c10::intrusive_ptr<c10d::Work> finished() { return c10::make_intrusive<Finished>(); }

}  // namespace

void UniformRanks::reduce_in_place(at::Tensor values, const c10d::ReduceOp& op) const {
  switch (op) {
    case c10d::ReduceOp::SUM:
      values.mul_(size_);
      break;
    case c10d::ReduceOp::PRODUCT:
      values.pow_(size_);
      break;
    case c10d::ReduceOp::BXOR:
      if (size_ % 2 == 0) values.zero_();
      break;
    default:  // the least, the greatest, and, or of equals
      break;
  }
}

UniformRanks::Done UniformRanks::broadcast(Tensors& /*tensors*/, const c10d::BroadcastOptions&) {
  return finished();
}

UniformRanks::Done UniformRanks::allreduce(Tensors& tensors,
                                           const c10d::AllreduceOptions& options) {
  reduce_in_place(tensors[0], options.reduceOp);
  return finished();
}

UniformRanks::Done UniformRanks::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  reduce_in_place(tensors[0], options.reduceOp);
  return finished();
}

UniformRanks::Done UniformRanks::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions&) {
  for (at::Tensor& output : outputs[0]) output.copy_(inputs[0]);
  return finished();
}

UniformRanks::Done UniformRanks::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) {
  // The input may be its place in the output.
  const at::Tensor mine = input.clone();
  output.view({size_, -1}).copy_(mine.view({1, -1}).expand({size_, -1}));
  return finished();
}

UniformRanks::Done UniformRanks::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::GatherOptions&) {
  if (outputs.empty()) return finished();
  for (at::Tensor& output : outputs[0]) output.copy_(inputs[0]);
  return finished();
}

UniformRanks::Done UniformRanks::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ScatterOptions&) {
  if (!inputs.empty()) outputs[0].copy_(inputs[0][static_cast<std::size_t>(rank_)]);
  return finished();
}

UniformRanks::Done UniformRanks::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ReduceScatterOptions& options) {
  outputs[0].copy_(inputs[0][static_cast<std::size_t>(rank_)]);
  reduce_in_place(outputs[0], options.reduceOp);
  return finished();
}

UniformRanks::Done UniformRanks::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) {
  // The output may be its place in the input.
  output.copy_(input.narrow(0, rank_ * output.numel(), output.numel()).clone());
  reduce_in_place(output, options.reduceOp);
  return finished();
}

UniformRanks::Done UniformRanks::alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_counts,
                                               std::vector<int64_t>& input_counts,
                                               const c10d::AllToAllOptions&) {
  // Everybody sends what this rank sends to itself, as much of it as there is room for.
  const auto me = static_cast<std::size_t>(rank_);
  int64_t begin = 0;
  for (std::size_t i = 0; i < me; ++i) begin += input_counts[i];
  const at::Tensor mine = input.narrow(0, begin, input_counts[me]);
  int64_t place = 0;
  for (const int64_t count : output_counts) {
    at::Tensor part = output.narrow(0, place, count);
    const int64_t known = std::min(count, input_counts[me]);
    part.narrow(0, 0, known).copy_(mine.narrow(0, 0, known));
    part.narrow(0, known, count - known).zero_();
    place += count;
  }
  return finished();
}

UniformRanks::Done UniformRanks::send(Tensors&, int, int) { return finished(); }

UniformRanks::Done UniformRanks::recv(Tensors& tensors, int, int) {
  tensors[0].zero_();
  return finished();
}

UniformRanks::Done UniformRanks::barrier(const c10d::BarrierOptions&) { return finished(); }

}  // namespace torch_npusim::distributed
