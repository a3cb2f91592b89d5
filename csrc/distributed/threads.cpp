// SPDX-License-Identifier: BSD-3-Clause
// One thread may write to the tensors of all: their owners wait for it before they touch them.
#include "csrc/distributed/threads.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace torch_npusim::distributed {

using Parts = ThreadRanks::Parts;

// The work of all who take part.
struct Shared final : c10d::Work {
  using c10d::Work::finish;
};
using SharedWork = c10::intrusive_ptr<Shared>;

namespace {

// finish_after() is the end of `work` for all who have it: what `act` throws is thrown to each.
void finish_after(Shared& work, const std::function<void()>& act) {
  try {
    act();
  } catch (...) {
    work.finish(std::current_exception());
    return;
  }
  work.finish();
}

void deliver(const at::Tensor& from, at::Tensor to) {
  TORCH_CHECK_VALUE(from.nbytes() == to.nbytes(), "a rank sends ", from.nbytes(),
                    " bytes where the other expects ", to.nbytes());
  if (from.data_ptr() != to.data_ptr()) to.copy_(from);
}

void accumulate(at::Tensor sum, const at::Tensor& value, const c10d::ReduceOp& op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      sum.add_(value);
      break;
    case c10d::ReduceOp::PRODUCT:
      sum.mul_(value);
      break;
    case c10d::ReduceOp::MIN:
      at::minimum_out(sum, sum, value);
      break;
    case c10d::ReduceOp::MAX:
      at::maximum_out(sum, sum, value);
      break;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "ranks in threads have no reduction ", op);
  }
}

// reduced() is the reduction of what `operand` names of each part, in memory of its own.
template <class Operand>
at::Tensor reduced(const Parts& parts, const c10d::ReduceOp& op, Operand&& operand) {
  at::Tensor sum = operand(parts[0]).clone();
  for (std::size_t rank = 1; rank < parts.size(); ++rank) accumulate(sum, operand(parts[rank]), op);
  return sum;
}

// scatter_reduced() writes to rank k the reduction of what piece(part, k) is of all parts. All are
// known before the first is written: an output may lie in an input.
template <class Piece>
void scatter_reduced(Parts& parts, const c10d::ReduceOp& op, Piece&& piece) {
  ThreadRanks::Tensors sums;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    sums.push_back(reduced(parts, op, [&](const ThreadRanks::Part& one) { return piece(one, k); }));
  }
  for (std::size_t k = 0; k < parts.size(); ++k) deliver(sums[k], parts[k].to[0]);
}

// The k-th of as many equal pieces as there are parts.
at::Tensor piece_of(const at::Tensor& whole, std::size_t k, const at::Tensor& of_size) {
  return whole.narrow(0, static_cast<int64_t>(k) * of_size.numel(), of_size.numel());
}

}  // namespace

// Meeting: the ranks of one group in one process. Collectives are numbered per rank, so the n-th of
// every rank belong together; transfers are matched in the order of their pair. The rank that
// completes a gathering does the work for all outside the lock, on its own thread.
class Meeting {
 public:
  // open() makes one for `size` ranks, which each enter() by its number, and wait there for all.
  static std::string open(int size) {
    const std::lock_guard lock(mutex_of_all());
    static int64_t opened = 0;
    const std::string number = std::to_string(++opened);
    all()[number] = std::make_shared<Meeting>(size);
    return number;
  }

  static std::shared_ptr<Meeting> enter(const std::string& number,
                                        std::chrono::milliseconds timeout) {
    std::shared_ptr<Meeting> meeting;
    {
      const std::lock_guard lock(mutex_of_all());
      const auto found = all().find(number);
      TORCH_CHECK(found != all().end(), "the ranks of the group are not threads of one process");
      meeting = found->second;
      if (++meeting->entered_ == meeting->size_) {
        all().erase(found);
        meeting->all_here_.finish();
      }
    }
    try {
      meeting->all_here_.wait(timeout);
    } catch (const c10::Error&) {  // the only one: the time is over
      const std::lock_guard lock(mutex_of_all());
      TORCH_CHECK_WITH(DistBackendError, false, "simccl: of the ", meeting->size_,
                       " ranks of a group only ", meeting->entered_, " came to make it within ",
                       timeout.count(), " ms");
    }
    return meeting;
  }

  explicit Meeting(int size) : size_(static_cast<std::size_t>(size)) {}

  SharedWork collective(std::uint64_t number, int rank, ThreadRanks::Part part,
                        const std::function<void(Parts&)>& act) {
    Gathering complete;
    {
      const std::lock_guard lock(mutex_);
      Gathering& gathering = gatherings_[number];
      if (gathering.work == nullptr) {
        gathering.work = c10::make_intrusive<Shared>();
        gathering.parts.resize(size_);
      }
      gathering.parts[static_cast<std::size_t>(rank)] = std::move(part);
      if (++gathering.present < size_) return gathering.work;
      complete = std::move(gathering);
      gatherings_.erase(number);
    }
    finish_after(*complete.work, [&] { act(complete.parts); });
    return complete.work;
  }

  // One end of a transfer, by the sender or by the receiver.
  SharedWork transfer(int from, int to, bool sends, const at::Tensor& tensor) {
    End other;
    {
      const std::lock_guard lock(mutex_);
      Line& line = lines_[{from, to}];
      std::deque<End>& others = sends ? line.receivers : line.senders;
      if (others.empty()) {
        std::deque<End>& mine = sends ? line.senders : line.receivers;
        mine.push_back({tensor, c10::make_intrusive<Shared>()});
        return mine.back().work;
      }
      other = std::move(others.front());
      others.pop_front();
    }
    finish_after(*other.work, [&] {
      if (sends) {
        deliver(tensor, other.tensor);
      } else {
        deliver(other.tensor, tensor);
      }
    });
    return other.work;
  }

 private:
  struct Gathering {
    Parts parts;
    std::size_t present = 0;
    SharedWork work;
  };
  struct End {
    at::Tensor tensor;
    SharedWork work;
  };
  struct Line {
    std::deque<End> senders, receivers;  // one of them is empty
  };
  static std::mutex& mutex_of_all() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::map<std::string, std::shared_ptr<Meeting>>& all() {
    static auto* opened = new std::map<std::string, std::shared_ptr<Meeting>>;
    return *opened;
  }

  const std::size_t size_;
  std::size_t entered_ = 0;  // guarded by mutex_of_all()
  Shared all_here_;
  std::mutex mutex_;                               // guards the rest
  std::map<std::uint64_t, Gathering> gatherings_;  // that some rank has not come to
  std::map<std::pair<int, int>, Line> lines_;      // by sender and receiver
};

namespace {

std::shared_ptr<Meeting> meeting_of(c10d::Store& store, int rank, int size,
                                    std::chrono::milliseconds timeout) {
  const std::string key = "npusim/meeting";
  if (rank == 0) {
    const std::string number = Meeting::open(size);
    store.set(key, std::vector<uint8_t>(number.begin(), number.end()));
  }
  const std::vector<uint8_t> number = store.get(key);
  return Meeting::enter(std::string(number.begin(), number.end()), timeout);
}

}  // namespace

ThreadRanks::ThreadRanks(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         std::chrono::milliseconds timeout)
    : Backend(rank, size), meeting_(meeting_of(*store, rank, size, timeout)) {}

ThreadRanks::Done ThreadRanks::collective(Part part, const std::function<void(Parts&)>& act) {
  return meeting_->collective(next_++, rank_, std::move(part), act);
}

ThreadRanks::Done ThreadRanks::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return collective({{}, tensors, {}, {}}, [&](Parts& parts) {
    const Part& root = parts[static_cast<std::size_t>(options.rootRank)];
    for (const Part& part : parts) deliver(root.to[0], part.to[0]);
  });
}

ThreadRanks::Done ThreadRanks::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return collective({{}, tensors, {}, {}}, [&](Parts& parts) {
    const at::Tensor sum = reduced(parts, options.reduceOp, [](auto& one) { return one.to[0]; });
    for (const Part& part : parts) deliver(sum, part.to[0]);
  });
}

ThreadRanks::Done ThreadRanks::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return collective({{}, tensors, {}, {}}, [&](Parts& parts) {
    deliver(reduced(parts, options.reduceOp, [](auto& one) { return one.to[0]; }),
            parts[static_cast<std::size_t>(options.rootRank)].to[0]);
  });
}

ThreadRanks::Done ThreadRanks::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions&) {
  return collective({inputs, outputs[0], {}, {}}, [](Parts& parts) {
    for (const Part& part : parts) {
      for (std::size_t k = 0; k < parts.size(); ++k) deliver(parts[k].from[0], part.to[k]);
    }
  });
}

ThreadRanks::Done ThreadRanks::_allgather_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::AllgatherOptions&) {
  return collective({{input}, {output}, {}, {}}, [](Parts& parts) {
    for (const Part& part : parts) {
      for (std::size_t k = 0; k < parts.size(); ++k) {
        deliver(parts[k].from[0], piece_of(part.to[0], k, part.from[0]));
      }
    }
  });
}

ThreadRanks::Done ThreadRanks::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::GatherOptions& options) {
  return collective({inputs, outputs.empty() ? Tensors{} : outputs[0], {}, {}}, [&](Parts& parts) {
    const Part& root = parts[static_cast<std::size_t>(options.rootRank)];
    for (std::size_t k = 0; k < parts.size(); ++k) deliver(parts[k].from[0], root.to[k]);
  });
}

ThreadRanks::Done ThreadRanks::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                       const c10d::ScatterOptions& options) {
  return collective({inputs.empty() ? Tensors{} : inputs[0], outputs, {}, {}}, [&](Parts& parts) {
    const Part& root = parts[static_cast<std::size_t>(options.rootRank)];
    for (std::size_t k = 0; k < parts.size(); ++k) deliver(root.from[k], parts[k].to[0]);
  });
}

ThreadRanks::Done ThreadRanks::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const c10d::ReduceScatterOptions& options) {
  return collective({inputs[0], outputs, {}, {}}, [&](Parts& parts) {
    scatter_reduced(parts, options.reduceOp, [](const Part& one, auto k) { return one.from[k]; });
  });
}

ThreadRanks::Done ThreadRanks::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::ReduceScatterOptions& options) {
  return collective({{input}, {output}, {}, {}}, [&](Parts& parts) {
    scatter_reduced(parts, options.reduceOp, [](const Part& one, std::size_t k) {
      return piece_of(one.from[0], k, one.to[0]);
    });
  });
}

ThreadRanks::Done ThreadRanks::alltoall_base(at::Tensor& output, at::Tensor& input,
                                             std::vector<int64_t>& output_counts,
                                             std::vector<int64_t>& input_counts,
                                             const c10d::AllToAllOptions&) {
  return collective({{input}, {output}, input_counts, output_counts}, [](Parts& parts) {
    std::vector<int64_t> written(parts.size());
    for (std::size_t from = 0; from < parts.size(); ++from) {
      int64_t read = 0;
      for (std::size_t to = 0; to < parts.size(); ++to) {
        const int64_t sent = parts[from].from_counts[to];
        const int64_t expected = parts[to].to_counts[from];
        deliver(parts[from].from[0].narrow(0, read, sent),
                parts[to].to[0].narrow(0, written[to], expected));
        read += sent;
        written[to] += expected;
      }
    }
  });
}

ThreadRanks::Done ThreadRanks::send(Tensors& tensors, int to, int /*tag*/) {
  return meeting_->transfer(rank_, to, /*sends=*/true, tensors[0]);
}

ThreadRanks::Done ThreadRanks::recv(Tensors& tensors, int from, int /*tag*/) {
  return meeting_->transfer(from, rank_, /*sends=*/false, tensors[0]);
}

ThreadRanks::Done ThreadRanks::barrier(const c10d::BarrierOptions&) {
  return collective({}, [](Parts&) {});
}

}  // namespace torch_npusim::distributed
