// SPDX-License-Identifier: BSD-3-Clause
// The generators that a captured operator draws from. A replay draws from the states that they had
// in the capture, whichever they have by then (graphsafe_set_state() exchanges them).
#pragma once

#include <mutex>
#include <vector>

#include "csrc/runtime/generator.h"

namespace torch_npusim {

struct Draw {
  c10::intrusive_ptr<PhiloxGenerator> generator;
  std::shared_ptr<PhiloxState> state;
};

// Where the operator that this thread captures notes its draws; nullptr: it captures none.
inline thread_local std::vector<Draw>* t_draws = nullptr;

// NotesDraws lasts as long as an operator is captured. One that it calls is its part.
class NotesDraws {
 public:
  explicit NotesDraws(std::vector<Draw>& draws) : outermost_(t_draws == nullptr) {
    if (outermost_) t_draws = &draws;
  }
  ~NotesDraws() {
    if (outermost_) t_draws = nullptr;
  }
  NotesDraws(const NotesDraws&) = delete;
  NotesDraws& operator=(const NotesDraws&) = delete;

 private:
  bool outermost_;
};

// DrawScope gives the generators their states of the capture while an operator is replayed.
class DrawScope {
 public:
  explicit DrawScope(const std::vector<Draw>& draws) : draws_(draws) { exchange(); }
  ~DrawScope() { exchange(); }
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

 private:
  void exchange() {
    for (Draw& draw : draws_) {
      const std::lock_guard<std::mutex> lock(draw.generator->mutex_);
      draw.state = draw.generator->exchange_state(draw.state);
    }
  }
  std::vector<Draw> draws_;
};

}  // namespace torch_npusim
