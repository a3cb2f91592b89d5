// SPDX-License-Identifier: BSD-3-Clause
// ThreadRanks: the transport of a group whose ranks are threads of one process. Each rank brings
// its tensors to a Meeting, and the last rank to arrive copies and reduces for all.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace torch_npusim::distributed {

// What the ranks of one group share.
class Meeting;

// Takes flat tensors of the host, as gloo does here. Contract: every rank asks for the same
// collectives in the same order, which pending.h has seen to before any comes here. Sums are taken
// in the order of the ranks.
class ThreadRanks final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Done = c10::intrusive_ptr<c10d::Work>;

  // What a rank brings to a collective: the tensors that are read, those that are written (one that
  // is both is in `to`), and how many bytes are for each other rank where that differs.
  struct Part {
    Tensors from, to;
    std::vector<int64_t> from_counts, to_counts;
  };
  using Parts = std::vector<Part>;  // by rank

  // Every rank of the group makes one, with a store of the group alone, and waits there for the
  // others. Throws DistBackendError if they have not come when the time is over.
  ThreadRanks(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
              std::chrono::milliseconds timeout);

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
  Done collective(Part part, const std::function<void(Parts&)>& act);

  const std::shared_ptr<Meeting> meeting_;
  std::uint64_t next_ = 0;  // number of this rank's next collective
};

}  // namespace torch_npusim::distributed
