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

// What a group is made with; torch copies it for the parts of a group.
struct SimcclOptions : c10d::Backend::Options {
  using c10d::Backend::Options::Options;
  bool is_high_priority_stream = false;  // NCCL's: kept, without effect
};

// meet() makes the memory in which the ranks of a group leave their words, by way of the store.
std::shared_ptr<npusim::CollectiveBoard> meet(const c10::intrusive_ptr<c10d::Store>& store,
                                              int rank, int size);

class Simccl final : public c10d::Backend {
 public:
  // `transport` moves the bytes of host tensors among the same ranks: gloo with one thread between
  // processes, ThreadRanks between threads, UniformRanks (without `words`) for a rank alone.
  // `ranks` are the members' numbers in the whole job, whose words are those of
  // `world`; nullptr: this group is the whole job. `label` is what profiles call the backend.
  Simccl(c10::intrusive_ptr<c10d::Backend> transport,
         std::shared_ptr<npusim::CollectiveBoard> words, const c10::intrusive_ptr<Simccl>& world,
         int rank, std::vector<int> ranks, std::string name, std::chrono::milliseconds timeout,
         std::string label);
  ~Simccl() override;

  const std::string getBackendName() const override { return "simccl"; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
  // split() makes the backend of those `ranks` of this group; for another rank it returns nullptr.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
  // splits() is how many parts the ranks of this group have split off, a rank's own or not.
  std::uint64_t splits() const { return splits_; }
  void count_split() { ++splits_; }
  // The maker of parts has the transport, which Python makes: `ranks` are those of the whole job.
  struct Part {
    c10::intrusive_ptr<c10d::Store> store;
    int rank;
    std::vector<int> ranks;
    std::string name, label;
    std::chrono::milliseconds timeout;
  };
  using Maker = c10::intrusive_ptr<c10d::Backend> (*)(const Part& part);
  static void set_maker(Maker maker) noexcept;
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
  // set_blocking_wait() makes every wait() that of the host, which raises what went wrong.
  void set_blocking_wait(bool blocks) { blocking_wait_ = blocks; }
  std::uint64_t uid() const { return uid_; }  // of all backends of the process
  // A communicator is made for a device here, or at the first call on it.
  void eagerConnectSingleDevice(at::Device device) override { connect(device.index()); }
  bool connected() const { return !used_devices_.empty(); }
  // communicators() are device and size of each group, ended ones too, in the order of their first
  // call on a device, at which NCCL makes a communicator.
  static std::vector<std::pair<int, int>> communicators();
  void shutdown() override;
  // registerOnCompletionHook() calls `hook` at the end of each collective, in the thread that waits
  // for it; waitForPendingWorks() waits for all, and shutdown() before it ends the group.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override { timed_ = true; }

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
  // One record is for all that `calls` start.
  WorkPtr coalesced(const char* title, const Tensors& inputs, const Tensors& outputs,
                    const std::function<void()>& calls);
  std::vector<std::shared_ptr<Pending>> under_way() const;
  void connect(int device);
  bool open() const;  // it takes calls
  // note() gives a call its numbers and its record.
  void note(const Call& call, const std::shared_ptr<Pending>& pending);
  std::shared_ptr<FlightEntry> record(const std::string& title, bool is_transfer,
                                      const Tensors& inputs, const Tensors& outputs);
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
  c10::intrusive_ptr<SimcclOptions> options_;
  struct Extension {
    std::chrono::milliseconds more;
    std::shared_ptr<Pending> until;  // nullptr: it has not been asked for
  };
  std::vector<Extension> extensions_;
  const std::string label_;
  const std::uint64_t uid_;
  std::uint64_t splits_ = 0;
  std::string split_name_;  // of the latest part
  c10::weak_intrusive_ptr<c10d::Backend> split_part_{c10::intrusive_ptr<c10d::Backend>()};
  bool check_nan_ = false, blocking_wait_ = false;
  int coalescing_ = 0;
  bool timed_ = false;
  std::shared_ptr<Standing> standing_ = std::make_shared<Standing>();
  bool noted_ = false;  // what is started has a record already
  bool coalesces_collectives_ = false, coalesces_transfers_ = false;  // since startCoalescing()
  std::vector<c10::intrusive_ptr<SimWork>> parts_;
  std::deque<at::Tensor> own_sends_, own_recvs_;  // of this rank to itself, one end only so far
};

}  // namespace torch_npusim::distributed
