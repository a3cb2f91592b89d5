// SPDX-License-Identifier: BSD-3-Clause
// Smaller problems in place of a placement problem.
//
//   compact_lives()  keeps only which buffers meet:   births | deaths | births | deaths ...
//                    each run of births, with the deaths behind it, becomes one moment. A gap
//                    begins with a death and ends with a birth.
//   GluedBuffers     makes one buffer of two that live alike (stacked), of two of one size where
//                    the second is born as the first dies (in a row), or of four around a fifth;
//                    again and again. Those with gaps or an alignment stay as they are.
//
//     +----+----+        +---+------+    Cutting a rectangle in pieces is undone by gluing; where a
//     | a  | b  |  row   |   |  c   |    trace has such patterns, of tensors born and freed
//     together
//     +----+----+        | d +--+---+    or taking turns, what is left to place is few and large.
//     |    c    |  stack |   |e |   |    Gluing may also cost height, so plan() tries without, too.
//     +---------+        +---+--+ b |
//                        |  a   |   |
//                        +------+---+
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lab/engine/plan.h"

namespace npusim::lab {

std::vector<Buffer> compact_lives(std::span<const Buffer> buffers);

class GluedBuffers {
 public:
  explicit GluedBuffers(std::span<const Buffer> buffers);

  const std::vector<Buffer>& whole() const noexcept { return whole_; }
  // apart() is the same plan for the buffers that were glued.
  Plan apart(const Plan& plan) const;

 private:
  struct Part {
    std::size_t node = 0;
    std::uint64_t offset = 0;
  };
  struct Node {
    Buffer buffer;
    std::vector<Part> parts = {};  // none: a buffer as given
  };
  class Gluing;

  std::size_t given_;
  std::vector<Node> nodes_;         // those given, then those glued
  std::vector<std::size_t> roots_;  // the node of each of whole_
  std::vector<Buffer> whole_;
};

}  // namespace npusim::lab
