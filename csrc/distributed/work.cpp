// SPDX-License-Identifier: BSD-3-Clause
// Work is an event on the stream of the communication. What streams, events and futures do with it
// is what they do with every other event.
#include "csrc/distributed/work.h"

#include <ATen/core/ivalue_inl.h>
#include <c10/core/StreamGuard.h>

#include "csrc/errors.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/host_sync.h"

namespace torch_npusim::distributed {

SimWork::SimWork(int rank, c10d::OpType type, npusim::Stream& stream,
                 std::shared_ptr<Pending> pending, std::vector<at::Tensor> results,
                 bool blocks_host, const std::string& title, const std::vector<at::Tensor>& inputs)
    : Work(rank, type, title.c_str(), inputs),
      stream_(&stream),
      pending_(std::move(pending)),
      results_(std::move(results)),
      blocks_host_(blocks_host),
      end_(std::make_unique<npusim::Event>(stream.device())) {
  translated([&] { end_->record(stream); });
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
}

SimWork::SimWork(int rank, std::vector<c10::intrusive_ptr<SimWork>> parts)
    : Work(rank, c10d::OpType::COALESCED), parts_(std::move(parts)) {
  for (const auto& part : parts_) {
    results_.insert(results_.end(), part->results_.begin(), part->results_.end());
  }
}

template <class Body>
void SimWork::each(Body&& body) {
  if (end_ != nullptr) translated([&] { body(*this); });
  for (const auto& part : parts_) part->each(body);
}

bool SimWork::isCompleted() {
  bool all = true;
  each([&](SimWork& part) { all = part.end_->query() && all; });
  return all;
}

bool SimWork::isSuccess() const { return exception() == nullptr; }

std::exception_ptr SimWork::exception() const {
  for (const auto& part : parts_) {
    if (auto failure = part->exception()) return failure;
  }
  return pending_ != nullptr ? pending_->failure() : nullptr;
}

void SimWork::synchronize() {
  each([](SimWork& part) { part.end_->block(npusim::current_stream(part.stream_->device())); });
}

bool SimWork::wait(std::chrono::milliseconds timeout) {
  synchronize();
  const bool limited = timeout != kNoTimeout;
  each([&](SimWork& part) {
    if (!limited && !part.blocks_host_) return;
    before_explicit_wait("Work.wait");
    if (limited) part.pending_->set_limit(timeout);
    part.end_->synchronize();
  });
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> SimWork::getFuture() {
  if (future_) return future_;
  std::vector<c10::Stream> streams;
  each([&](SimWork& part) { streams.push_back(torch_stream(*part.stream_)); });
  std::vector<c10::Device> devices;
  for (const c10::Stream& stream : streams) {
    if (std::find(devices.begin(), devices.end(), stream.device()) == devices.end()) {
      devices.push_back(stream.device());
    }
  }
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     devices);
  // The future marks the current streams. Those of several parts are joined in the last one's.
  for (std::size_t i = 0; i + 1 < streams.size(); ++i) {
    translated([&] { parts_[i]->end_->block(*parts_.back()->stream_); });
  }
  const c10::StreamGuard guard(streams.back());
  future_->markCompleted(c10::IValue(results_));
  return future_;
}

uint64_t SimWork::getSequencenumber() const {
  return pending_ != nullptr ? pending_->sequence() : parts_.back()->getSequencenumber();
}

int SimWork::sourceRank() const {
  TORCH_CHECK(pending_ != nullptr && pending_->what().peer >= 0,
              "sourceRank() may only be called on work of a receive");
  return pending_->what().peer;
}

}  // namespace torch_npusim::distributed
