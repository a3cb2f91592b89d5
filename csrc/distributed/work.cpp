// SPDX-License-Identifier: BSD-3-Clause
// Work is an event on the stream of the communication. What streams, events and futures do with it
// is what they do with every other event.
#include "csrc/distributed/work.h"

#include <ATen/core/ivalue_inl.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "csrc/distributed/payload.h"
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
  if (c10d::allow_inflight_collective_as_graph_input()) {
    c10d::unregister_work(c10::intrusive_ptr<SimWork>::unsafe_reclaim_from_nonowning(this));
  }
}

bool SimWork::wait(std::chrono::milliseconds timeout) {
  synchronize();
  const bool limited = timeout != kNoTimeout;
  each([&](SimWork& part) {
    if (!limited && !part.blocks_host_) return;
    before_explicit_wait("Work.wait");
    if (limited) part.pending_->set_limit(timeout);
    try {
      part.end_->synchronize();
    } catch (...) {  // once: as after NCCL's abort, the device goes on
      npusim::forget_promises([&](const auto& one) { return &one == part.pending_.get(); });
      throw;
    }
  });
  return true;
}

at::Tensor SimWork::together() {
  std::vector<std::int64_t> sizes = results_[0].sizes().vec(),
                            strides = results_[0].strides().vec();
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(results_.size()));
  strides.insert(strides.begin(), results_[0].numel());
  at::Tensor all = at::empty_strided(sizes, strides, results_[0].options());
  if (npusim::dry()) return all;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& result : results_) parts.push_back(bytes_of(result));
  // The host's views live no longer than the tensors.
  const auto copy = [all, bytes = bytes_of(all), parts, results = results_] {
    auto* to = bytes.mutable_data_ptr<std::uint8_t>();
    for (const at::Tensor& part : parts) {
      to = std::copy_n(part.const_data_ptr<std::uint8_t>(), part.numel(), to);
    }
  };
  if (!pending_->copying(copy)) {
    translated([&] { npusim::settle_all({pending_}, 0); });
    copy();
  }
  return all;
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
  // As NCCL's, which gathers a list into one tensor.
  const bool gathered = pending_ != nullptr && retrieveOpType() == c10d::OpType::ALLGATHER;
  const std::vector<at::Tensor> value = gathered ? std::vector{together()} : results_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     devices);
  // The future marks the current streams. Those of several parts are joined in the last one's.
  for (std::size_t i = 0; i + 1 < streams.size(); ++i) {
    translated([&] { parts_[i]->end_->block(*parts_.back()->stream_); });
  }
  const c10::StreamGuard guard(streams.back());
  future_->markCompleted(c10::IValue(value));
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> SimWork::getFutureResult() {
  auto result = c10d::WorkResult::SUCCESS;
  try {
    each([](SimWork& part) { part.end_->synchronize(); });
  } catch (const c10::DistError& error) {
    const bool late =
        std::string_view(error.what_without_backtrace()).find("imeout") != std::string_view::npos;
    result = late ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
  }
  auto told = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  told->markCompleted(static_cast<std::int64_t>(result));
  return told;
}

uint64_t SimWork::getSequencenumber() const {
  return pending_ != nullptr ? pending_->sequence() : parts_.back()->getSequencenumber();
}

float SimWork::getDuration() const {
  if (pending_ == nullptr) return parts_.back()->getDuration();
  TORCH_CHECK(pending_->settled(), "getDuration() may only be called on work that has ended");
  return static_cast<float>(pending_->duration_ms());
}

void SimWork::report_to(const std::shared_ptr<FlightEntry>& record) {
  if (pending_ != nullptr) return pending_->report_to(record);
  if (parts_.empty()) return record->end(/*completed=*/true, 0);
  parts_.back()->report_to(record);
}

int SimWork::sourceRank() const {
  TORCH_CHECK(pending_ != nullptr && pending_->what().peer >= 0,
              "sourceRank() may only be called on work of a receive");
  return pending_->what().peer;
}

}  // namespace torch_npusim::distributed
