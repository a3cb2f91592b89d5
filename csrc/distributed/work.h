// SPDX-License-Identifier: BSD-3-Clause
// What a collective returns: wait() makes the current stream wait, not the host.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "csrc/distributed/pending.h"

namespace torch_npusim::distributed {

class SimWork final : public c10d::Work {
 public:
  // Work that is under way on `stream`, whose end is marked now. `blocks_host`: wait() makes the
  // host wait too, as for a barrier. The profiler shows it as `title`, with the shapes of `inputs`.
  SimWork(int rank, c10d::OpType type, npusim::Stream& stream, std::shared_ptr<Pending> pending,
          std::vector<at::Tensor> results, bool blocks_host, const std::string& title,
          const std::vector<at::Tensor>& inputs);
  // All of several pieces of work.
  SimWork(int rank, std::vector<c10::intrusive_ptr<SimWork>> parts);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return results_; }
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() override { synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // getFutureResult() is a WorkResult: the host waits here, as no thread watches the work.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  uint64_t getSequencenumber() const override;
  int sourceRank() const override;
  // getDuration() is the virtual time that it took, in ms, once it has ended.
  float getDuration() const override;
  // report_to() ends a part of the record at the end of the last piece of this.
  void report_to(const std::shared_ptr<FlightEntry>& record);

 private:
  template <class Body>
  void each(Body&& body);
  // together() is one tensor with a copy of all results, which are alike; it waits for nothing.
  at::Tensor together();

  npusim::Stream* stream_ = nullptr;
  std::shared_ptr<Pending> pending_;
  std::vector<at::Tensor> results_;
  bool blocks_host_ = false;
  std::unique_ptr<npusim::Event> end_;
  std::vector<c10::intrusive_ptr<SimWork>> parts_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace torch_npusim::distributed
