// SPDX-License-Identifier: BSD-3-Clause
// The bytes that each collective gives to the transport, and the values that ranks must agree on.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "backend/visible_devices.h"
#include "csrc/distributed/call.h"
#include "csrc/distributed/simccl.h"

namespace torch_npusim::distributed {

using c10d::OpType;
using npusim::Collective;

namespace {

double total_bytes(const Tensors& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

Tensors bytes_of_all(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) all.push_back(bytes_of(tensor));
  return all;
}

at::Tensor& only(Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1,
                    "Expecting one tensor only but got multiple. A rank has one device.");
  return tensors[0];
}

}  // namespace

WorkPtr Simccl::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  at::Tensor& tensor = only(tensors);
  check_operand(tensor);
  Call call{OpType::BROADCAST, Collective::broadcast, {},
            {tensor},          options.asyncOp,       options.timeout};
  if (options.rootRank == rank_) std::swap(call.reads, call.writes);
  call.root = static_cast<int>(options.rootRank);
  call.count = tensor.numel();
  call.bytes = total_bytes(tensors);
  call.queued = true;
  call.move = [&]() -> std::vector<Inner> {
    Tensors bytes = {bytes_of(tensor)};
    return {group_->transport->broadcast(bytes, options)};
  };
  return start(call);
}

WorkPtr Simccl::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor& tensor = only(tensors);
  check_operand(tensor);
  const Reduction reduction(options.reduceOp, tensor.scalar_type(), size_);
  Call call{OpType::ALLREDUCE, Collective::all_reduce, {},
            {tensor},          options.asyncOp,        options.timeout};
  call.asked = options.reduceOp;
  call.count = tensor.numel();
  call.bytes = total_bytes(tensors);
  call.queued = !reduction.prepares() && !reduction.finishes();
  const at::Tensor values = values_of(tensor);
  at::Tensor operand = values;
  call.move = [&]() -> std::vector<Inner> {
    if (reduction.widens()) {
      operand = reduction.prepared(values);
    } else {
      reduction.prepare(values);
    }
    c10d::AllreduceOptions inner = options;
    inner.reduceOp = reduction.op();
    Tensors operands = {operand};
    if (reduction.finishes()) {
      call.finish = [reduction, operand = operand, values] { reduction.finish(operand, values); };
    }
    return {group_->transport->allreduce(operands, inner)};
  };
  return start(call);
}

WorkPtr Simccl::allreduce_coalesced(Tensors& tensors,
                                    const c10d::AllreduceCoalescedOptions& options) {
  check_alike(tensors);
  return coalesced("allreduce_coalesced", tensors, tensors, [&] {
    for (const at::Tensor& tensor : tensors) {
      Tensors one = {tensor};
      allreduce(one, options);
    }
  });
}

WorkPtr Simccl::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  at::Tensor& tensor = only(tensors);
  check_operand(tensor);
  const Reduction reduction(options.reduceOp, tensor.scalar_type(), size_);
  const bool root = options.rootRank == rank_;
  Call call{OpType::REDUCE, Collective::reduce, {}, {tensor}, options.asyncOp, options.timeout};
  if (!root) std::swap(call.reads, call.writes);
  call.root = static_cast<int>(options.rootRank);
  call.asked = options.reduceOp;
  call.count = tensor.numel();
  call.bytes = total_bytes(tensors);
  const at::Tensor values = values_of(tensor);
  call.move = [&]() -> std::vector<Inner> {
    at::Tensor operand = reduction.prepared(values);
    // Gloo writes partial sums to every rank's operand.
    if (operand.is_same(values)) operand = values.clone();
    c10d::ReduceOptions inner = options;
    inner.reduceOp = reduction.op();
    Tensors operands = {operand};
    if (root) {
      call.finish = [reduction, operand, values] {
        if (!reduction.widens()) at::Tensor(values).copy_(operand);
        reduction.finish(operand, values);
      };
    }
    return {group_->transport->reduce(operands, inner)};
  };
  return start(call);
}

WorkPtr Simccl::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                          const c10d::AllgatherOptions& options) {
  at::Tensor& input = only(inputs);
  check_operand(input);
  TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].size() == static_cast<std::size_t>(size_),
                    "all_gather takes one tensor per rank, ", size_, "; got ",
                    outputs.empty() ? 0 : outputs[0].size());
  check_alike(outputs[0]);
  const bool even = std::all_of(outputs[0].begin(), outputs[0].end(), [&](const at::Tensor& one) {
    return one.numel() == input.numel();
  });
  if (!even) return all_gather_uneven(outputs[0], input, options.asyncOp, options.timeout);
  Call call{OpType::ALLGATHER, Collective::all_gather, {input},
            outputs[0],        options.asyncOp,        options.timeout};
  call.count = input.numel();
  call.bytes = total_bytes(outputs[0]);
  call.queued = true;
  call.move = [&]() -> std::vector<Inner> {
    std::vector<Tensors> to = {bytes_of_all(outputs[0])};
    Tensors from = {bytes_of(input)};
    return {group_->transport->allgather(to, from, options)};
  };
  return start(call);
}

WorkPtr Simccl::all_gather_uneven(Tensors& outputs, at::Tensor& input, bool async,
                                  std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(outputs[static_cast<std::size_t>(rank_)].numel() == input.numel(),
                    "all_gather: the output of this rank has ",
                    outputs[static_cast<std::size_t>(rank_)].numel(), " elements, its input ",
                    input.numel());
  return coalesced("all_gather", {input}, outputs, [&] {
    for (int root = 0; root < size_; ++root) {
      at::Tensor& output = outputs[static_cast<std::size_t>(root)];
      Call call{OpType::ALLGATHER, Collective::broadcast, {}, {output}, async, timeout};
      if (root == rank_) call.reads = {input};
      call.root = root;
      call.count = output.numel();
      call.bytes = static_cast<double>(output.nbytes());
      call.move = [&]() -> std::vector<Inner> {
        Tensors bytes = {bytes_of(output)};
        if (root == rank_) bytes[0].copy_(bytes_of(input));
        c10d::BroadcastOptions options;
        options.rootRank = root;
        return {group_->transport->broadcast(bytes, options)};
      };
      call.queued = root != rank_;
      start(call);
    }
  });
}

WorkPtr Simccl::_allgather_base(at::Tensor& output, at::Tensor& input,
                                const c10d::AllgatherOptions& options) {
  check_operand(input);
  check_operand(output);
  TORCH_CHECK_TYPE(input.dtype() == output.dtype(),
                   "output tensor must have the same type as input tensor");
  TORCH_CHECK_VALUE(input.numel() * size_ == output.numel(),
                    "output tensor size must be equal to world_size times input tensor size");
  Call call{OpType::_ALLGATHER_BASE, Collective::all_gather, {input}, {output},
            options.asyncOp,         options.timeout};
  call.count = input.numel();
  call.bytes = static_cast<double>(output.nbytes());
  call.queued = true;
  // The input may be its place in the output, which gloo then writes what is there already.
  call.move = [&]() -> std::vector<Inner> {
    at::Tensor to = bytes_of(output);
    at::Tensor from = bytes_of(input);
    return {group_->transport->_allgather_base(to, from, options)};
  };
  return start(call);
}

WorkPtr Simccl::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  return coalesced("all_gather_into_tensor_coalesced", inputs, outputs, [&] {
    for (std::size_t i = 0; i < inputs.size(); ++i) _allgather_base(outputs[i], inputs[i], options);
  });
}

WorkPtr Simccl::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                       const c10d::GatherOptions& options) {
  at::Tensor& input = only(inputs);
  check_operand(input);
  const bool root = options.rootRank == rank_;
  if (root) {
    TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].size() == static_cast<std::size_t>(size_),
                      "gather: the root takes one tensor per rank, ", size_);
    check_alike(outputs[0]);
  }
  Call call{OpType::GATHER,  Collective::gather, {input}, root ? outputs[0] : Tensors{},
            options.asyncOp, options.timeout};
  call.root = static_cast<int>(options.rootRank);
  call.count = input.numel();
  call.bytes = static_cast<double>(input.nbytes()) * size_;
  call.queued = true;
  call.move = [&]() -> std::vector<Inner> {
    std::vector<Tensors> to;
    if (root) to.push_back(bytes_of_all(outputs[0]));
    Tensors from = {bytes_of(input)};
    return {group_->transport->gather(to, from, options)};
  };
  return start(call);
}

WorkPtr Simccl::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                        const c10d::ScatterOptions& options) {
  at::Tensor& output = only(outputs);
  check_operand(output);
  const bool root = options.rootRank == rank_;
  if (root) {
    TORCH_CHECK_VALUE(inputs.size() == 1 && inputs[0].size() == static_cast<std::size_t>(size_),
                      "scatter: the root takes one tensor per rank, ", size_);
    check_alike(inputs[0]);
  }
  Call call{OpType::SCATTER, Collective::scatter, root ? inputs[0] : Tensors{},
            {output},        options.asyncOp,     options.timeout};
  call.root = static_cast<int>(options.rootRank);
  call.count = output.numel();
  call.bytes = static_cast<double>(output.nbytes()) * size_;
  call.queued = true;
  call.move = [&]() -> std::vector<Inner> {
    std::vector<Tensors> from;
    if (root) from.push_back(bytes_of_all(inputs[0]));
    Tensors to = {bytes_of(output)};
    return {group_->transport->scatter(to, from, options)};
  };
  return start(call);
}

WorkPtr Simccl::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                               const c10d::ReduceScatterOptions& options) {
  at::Tensor& output = only(outputs);
  check_operand(output);
  TORCH_CHECK_VALUE(inputs.size() == 1 && inputs[0].size() == static_cast<std::size_t>(size_),
                    "reduce_scatter takes one tensor per rank, ", size_);
  check_alike(inputs[0]);
  const bool even = std::all_of(inputs[0].begin(), inputs[0].end(), [&](const at::Tensor& one) {
    return one.numel() == output.numel();
  });
  if (!even) {
    return coalesced("reduce_scatter", inputs[0], outputs, [&] {
      for (int root = 0; root < size_; ++root) {
        at::Tensor mine = inputs[0][static_cast<std::size_t>(root)].clone();
        if (root == rank_) {
          TORCH_CHECK_VALUE(mine.numel() == output.numel(),
                            "reduce_scatter: this rank's input has ", mine.numel(),
                            " elements, its output ", output.numel());
          output.view({-1}).copy_(mine.view({-1}));
          mine = output;
        }
        Tensors one = {mine};
        c10d::ReduceOptions inner;
        inner.reduceOp = options.reduceOp;
        inner.rootRank = root;
        inner.timeout = options.timeout;
        inner.asyncOp = options.asyncOp;
        reduce(one, inner);
      }
    });
  }
  const Reduction reduction(options.reduceOp, output.scalar_type(), size_);
  Call call{
      OpType::REDUCE_SCATTER, Collective::reduce_scatter, inputs[0], {output}, options.asyncOp,
      options.timeout};
  call.asked = options.reduceOp;
  call.count = output.numel();
  call.bytes = total_bytes(inputs[0]);
  call.move = [&]() -> std::vector<Inner> {
    std::vector<Tensors> from(1);
    for (const at::Tensor& input : inputs[0])
      from[0].push_back(reduction.prepared(values_of(input)));
    const at::Tensor values = values_of(output);
    Tensors to = {reduction.result(values)};
    if (reduction.finishes()) {
      call.finish = [reduction, result = to[0], values] { reduction.finish(result, values); };
    }
    c10d::ReduceScatterOptions inner = options;
    inner.reduceOp = reduction.op();
    return {group_->transport->reduce_scatter(to, from, inner)};
  };
  return start(call);
}

WorkPtr Simccl::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                     const c10d::ReduceScatterOptions& options) {
  check_operand(input);
  check_operand(output);
  TORCH_CHECK_TYPE(input.dtype() == output.dtype(),
                   "input tensor must be the same type as the output tensor.");
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_,
                    "input tensor must be the same size as output size times world size");
  const Reduction reduction(options.reduceOp, output.scalar_type(), size_);
  Call call{OpType::_REDUCE_SCATTER_BASE,
            Collective::reduce_scatter,
            {input},
            {output},
            options.asyncOp,
            options.timeout};
  call.asked = options.reduceOp;
  call.count = output.numel();
  call.bytes = static_cast<double>(input.nbytes());
  call.move = [&]() -> std::vector<Inner> {
    at::Tensor from = reduction.prepared(values_of(input));
    const at::Tensor values = values_of(output);
    at::Tensor to = reduction.result(values);
    if (reduction.finishes()) {
      call.finish = [reduction, to, values] { reduction.finish(to, values); };
    }
    c10d::ReduceScatterOptions inner = options;
    inner.reduceOp = reduction.op();
    return {group_->transport->_reduce_scatter_base(to, from, inner)};
  };
  return start(call);
}

WorkPtr Simccl::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                const c10d::ReduceScatterOptions& options) {
  return coalesced("reduce_scatter_tensor_coalesced", inputs, outputs, [&] {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      _reduce_scatter_base(outputs[i], inputs[i], options);
    }
  });
}

WorkPtr Simccl::alltoall_base(at::Tensor& output, at::Tensor& input,
                              std::vector<int64_t>& output_splits,
                              std::vector<int64_t>& input_splits,
                              const c10d::AllToAllOptions& options) {
  check_operand(input);
  check_operand(output);
  TORCH_CHECK_TYPE(input.dtype() == output.dtype(), "Tensors must have identical type");
  // Splits count rows; gloo is to count bytes.
  const auto in_bytes = [this](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    std::vector<int64_t> counts = splits;
    if (counts.empty()) {
      TORCH_CHECK_VALUE(rows % size_ == 0,
                        "Tensor's dim 0 does not divide equally across group size");
      counts.assign(static_cast<std::size_t>(size_), rows / size_);
    }
    TORCH_CHECK_VALUE(counts.size() == static_cast<std::size_t>(size_),
                      "Number of tensor splits not equal to group size");
    int64_t sum = 0;
    for (const int64_t count : counts) sum += count;
    TORCH_CHECK_VALUE(sum == rows, "Split sizes doesn't match total dim 0 size");
    const int64_t row = rows == 0 ? 0 : static_cast<int64_t>(tensor.nbytes()) / rows;
    for (int64_t& count : counts) count *= row;
    return counts;
  };
  std::vector<int64_t> to_counts = in_bytes(output, output_splits);
  std::vector<int64_t> from_counts = in_bytes(input, input_splits);
  Call call{OpType::ALLTOALL_BASE, Collective::all_to_all, {input}, {output},
            options.asyncOp,       options.timeout};
  call.bytes = static_cast<double>(std::max(input.nbytes(), output.nbytes()));
  call.sends = from_counts;
  call.expects = to_counts;
  call.queued = true;
  call.move = [&]() -> std::vector<Inner> {
    at::Tensor to = bytes_of(output);
    at::Tensor from = bytes_of(input);
    return {group_->transport->alltoall_base(to, from, to_counts, from_counts, options)};
  };
  return start(call);
}

WorkPtr Simccl::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == static_cast<std::size_t>(size_) &&
                        inputs.size() == static_cast<std::size_t>(size_),
                    "all_to_all takes one tensor per rank, ", size_, ", on both sides");
  check_alike(inputs);
  check_alike(outputs);
  Call call{OpType::ALLTOALL, Collective::all_to_all, inputs,
            outputs,          options.asyncOp,        options.timeout};
  call.bytes = std::max(total_bytes(inputs), total_bytes(outputs));
  for (const at::Tensor& one : inputs) call.sends.push_back(static_cast<int64_t>(one.nbytes()));
  for (const at::Tensor& one : outputs) call.expects.push_back(static_cast<int64_t>(one.nbytes()));
  call.move = [&]() -> std::vector<Inner> {
    const Tensors to = bytes_of_all(outputs);
    const Tensors from = bytes_of_all(inputs);
    std::vector<int64_t> to_counts, from_counts;
    for (const at::Tensor& one : to) to_counts.push_back(one.numel());
    for (const at::Tensor& one : from) from_counts.push_back(one.numel());
    at::Tensor joined_to = at::empty({total_numel(to)}, at::TensorOptions(at::kByte));
    at::Tensor joined_from = at::empty({total_numel(from)}, at::TensorOptions(at::kByte));
    int64_t offset = 0;
    for (const at::Tensor& one : from) {
      joined_from.narrow(0, offset, one.numel()).copy_(one);
      offset += one.numel();
    }
    call.finish = [to, joined_to] {
      int64_t place = 0;
      for (at::Tensor one : to) {
        one.copy_(joined_to.narrow(0, place, one.numel()));
        place += one.numel();
      }
    };
    return {
        group_->transport->alltoall_base(joined_to, joined_from, to_counts, from_counts, options)};
  };
  return start(call);
}

// Tags are gloo's; NCCL matches transfers in their order.
WorkPtr Simccl::send(Tensors& tensors, int to, int /*tag*/) {
  at::Tensor& tensor = only(tensors);
  check_operand(tensor, /*transfer=*/true);
  if (to == rank_) return to_itself(tensor, own_sends_);
  Call call{OpType::SEND, Collective::transfer, {tensor}, {}};
  call.count = tensor.numel();
  call.bytes = total_bytes(tensors);
  call.peer = to;
  call.row = transfers(rank_, to);
  call.queued = true;
  call.move = [&]() -> std::vector<Inner> {
    Tensors bytes = {bytes_of(tensor)};
    return {group_->transport->send(bytes, to, 0)};
  };
  return start(call);
}

WorkPtr Simccl::recv(Tensors& tensors, int from, int /*tag*/) {
  at::Tensor& tensor = only(tensors);
  check_operand(tensor, /*transfer=*/true);
  if (from == rank_) return to_itself(tensor, own_recvs_);
  Call call{OpType::RECV, Collective::transfer, {}, {tensor}};
  call.count = tensor.numel();
  call.bytes = total_bytes(tensors);
  call.peer = from;
  call.row = transfers(from, rank_);
  call.queued = true;
  call.move = [&]() -> std::vector<Inner> {
    Tensors bytes = {bytes_of(tensor)};
    return {group_->transport->recv(bytes, from, 0)};
  };
  return start(call);
}

// Gloo has no pair of a rank and itself. As with NCCL both ends have to be in one group of calls;
// whichever comes second does the copy.
WorkPtr Simccl::to_itself(const at::Tensor& tensor, std::deque<at::Tensor>& ends) {
  TORCH_CHECK_WITH(DistBackendError, coalescing_ > 0, "simccl: rank ", rank_,
                   " can transfer to itself within batch_isend_irecv() only, as with NCCL");
  ends.push_back(tensor);
  if (own_sends_.empty() || own_recvs_.empty()) {
    return c10::make_intrusive<SimWork>(rank_, std::vector<c10::intrusive_ptr<SimWork>>{});
  }
  const at::Tensor from = std::exchange(own_sends_.front(), {});
  const at::Tensor to = std::exchange(own_recvs_.front(), {});
  own_sends_.pop_front();
  own_recvs_.pop_front();
  TORCH_CHECK_VALUE(from.dtype() == to.dtype() && from.numel() == to.numel(), "simccl: rank ",
                    rank_, " sends itself ", from.numel(), " elements of ", from.dtype(),
                    " and receives ", to.numel(), " of ", to.dtype());
  Call call{OpType::SEND, Collective::transfer, {from}, {to}};
  call.count = from.numel();
  call.bytes = static_cast<double>(from.nbytes());
  call.peer = rank_;
  call.row = transfers(rank_, rank_);
  call.move = [&]() -> std::vector<Inner> {
    bytes_of(to).copy_(bytes_of(from));
    return {};
  };
  return start(call);
}

WorkPtr Simccl::barrier(const c10d::BarrierOptions& options) {
  Call call{OpType::BARRIER, Collective::all_reduce, {}, {}, /*async=*/true, options.timeout};
  call.device = options.device;
  if (!options.device || !options.device->is_privateuseone() || !options.device->has_index()) {
    // NCCL's order: the caller's, the one that was used first, a guess by the rank.
    const auto visible = static_cast<int>(npusim::visible_devices().size());
    const auto index = !options.device_ids.empty() ? static_cast<int>(options.device_ids[0])
                       : used_devices_.empty()     ? group_->in_job(rank_) % visible
                                                   : *used_devices_.begin();
    call.device = at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(index));
  }
  call.bytes = 4;
  call.blocks_host = true;
  call.queued = true;
  call.move = [&]() -> std::vector<Inner> {
    c10d::BarrierOptions inner;
    inner.timeout = options.timeout;
    return {group_->transport->barrier(inner)};
  };
  return start(call);
}

}  // namespace torch_npusim::distributed
