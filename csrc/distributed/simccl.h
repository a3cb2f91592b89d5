// SPDX-License-Identifier: BSD-3-Clause
// simccl: the c10d backend of npusim. It accepts the calls that NCCL accepts. A transport moves the
// bytes; the fabric (backend/fabric.h) says how long that takes.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "csrc/distributed/pending.h"
#include "csrc/distributed/work.h"

namespace torch_npusim::distributed {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// meet() makes the memory in which the ranks of a group leave their words, by way of the store.
std::shared_ptr<npusim::Rendezvous> meet(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                         int size);

class Simccl final : public c10d::Backend {
 public:
  // `transport` moves the bytes of host tensors among the same ranks: gloo with one thread between
  // processes, ThreadRanks between threads, UniformRanks (without `words`) for a rank alone.
  // `ranks` are the members' numbers in the whole job, whose words are those of
  // `world`; nullptr: this group is the whole job. `label` is what profiles call the backend.
  Simccl(c10::intrusive_ptr<c10d::Backend> transport, std::shared_ptr<npusim::Rendezvous> words,
         const c10::intrusive_ptr<Simccl>& world, int rank, std::vector<int> ranks,
         std::string name, std::chrono::milliseconds timeout, std::string label);
  ~Simccl() override;

  const std::string getBackendName() const override { return "simccl"; }
  bool supportsCoalescing() const override { return true; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  // addEphemeralTimeout() lengthens the limit of collectives until the first one after it has
  // ended. From torch 2.15 on it is a function of every backend, which groups call.
  void addEphemeralTimeout(const std::chrono::milliseconds& more);
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return collectives_->next; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  void abort() override;
  // set_check_nan() makes each call refuse inputs with a NaN in them.
  void set_check_nan(bool check) { check_nan_ = check; }
  std::uint64_t uid() const { return uid_; }  // of all backends of the process
  // communicators() are device and size of each group, ended ones too, in the order of their first
  // call on a device, at which NCCL makes a communicator.
  static std::vector<std::pair<int, int>> communicators();
  void shutdown() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  struct Call;  // one collective: what it is and how gloo does it
  WorkPtr start(Call& call);
  static void refuse_nan(const Call& call);
  WorkPtr coalesced(const std::function<void()>& calls);
  WorkPtr all_gather_uneven(Tensors& outputs, at::Tensor& input, bool async,
                            std::chrono::milliseconds timeout);
  WorkPtr to_itself(const at::Tensor& tensor, std::deque<at::Tensor>& ends);
  npusim::Stream& communication_stream(int device, const Call& call);
  std::shared_ptr<Row> transfers(int from, int to);
  std::chrono::milliseconds limit(std::chrono::milliseconds asked);

  std::shared_ptr<Group> group_;
  std::shared_ptr<Row> collectives_ = std::make_shared<Row>();
  std::map<std::pair<int, int>, std::shared_ptr<Row>> transfers_;  // by sender and receiver
  std::map<std::pair<int, int>, npusim::Stream*> streams_;         // by device and row
  std::set<int> used_devices_;
  c10::intrusive_ptr<Options> options_;
  struct Extension {
    std::chrono::milliseconds more;
    std::shared_ptr<Pending> until;  // nullptr: it has not been asked for
  };
  std::vector<Extension> extensions_;
  const std::string label_;
  const std::uint64_t uid_;
  bool check_nan_ = false;
  int coalescing_ = 0;
  std::vector<c10::intrusive_ptr<SimWork>> parts_;
  std::deque<at::Tensor> own_sends_, own_recvs_;  // of this rank to itself, one end only so far
};

}  // namespace torch_npusim::distributed
