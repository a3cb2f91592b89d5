// SPDX-License-Identifier: BSD-3-Clause
// What the kernels of random operators share: draws by tiles, elements in row-major order whatever
// the strides, and the offsets of empty tensors.
// Invariant (rule R1): element i is the i-th in row-major order, so a tensor's strides, its memory
// format and the number of threads leave its values as they are.
#pragma once

#include <functional>
#include <tuple>

#include "csrc/aten/philox.h"
#include "csrc/aten/row_major_walk.h"
#include "csrc/launch/launch.h"
#include "csrc/routes/cpu_call.h"
#include "csrc/runtime/dry_answers.h"

namespace torch_npusim {

using MaybeGenerator = std::optional<at::Generator>;

// Elements of eight bytes take 64-bit draws.
template <class T>
using DrawFor = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

// each_tile() calls tile(first, count, draws) for all elements, kTileElements at a time; a draw
// takes four bytes or eight.
using Tile = std::function<void(std::int64_t first, std::int64_t count, const void* draws)>;
void each_tile(const PhiloxState& state, std::int64_t numel, std::size_t draw_bytes,
               const Tile& tile);

template <class Draw, class Body>
void for_each_tile(const PhiloxState& state, std::int64_t numel, const Body& body) {
  each_tile(state, numel, sizeof(Draw),
            [&](std::int64_t first, std::int64_t count, const void* draws) {
              body(first, count, static_cast<const Draw*>(draws));
            });
}

// fill() reserves offsets of `generator` and runs one command that writes make(draws, count,
// values) to every tile of `self`; make may write all kTileElements values. fill_tiles() is its
// part that is the same for all types.
using Make = std::function<void(const void* draws, std::int64_t count, void* values)>;
void fill_tiles(const char* op, const at::TensorBase& self, const MaybeGenerator& generator,
                std::size_t draw_bytes, const Make& make, double flops_per_element);

template <class T, class Draw, class Values>
void fill(const char* op, const at::TensorBase& self, const MaybeGenerator& generator,
          const Values& make, double flops_per_element) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  const Make any = [&](const void* draws, std::int64_t count, void* values) {
    make(static_cast<const Draw*>(draws), count, static_cast<T*>(values));
  };
  fill_tiles(op, self, generator, sizeof(Draw), any, flops_per_element);
}

// Drawing<f>::call is the native function f, which returns before its kernel when there is nothing
// to fill; call then reserves the offsets all the same (rule R2).
template <auto Native>
struct Drawing;
template <class Result, class... Args, Result (*Native)(Args...)>
struct Drawing<Native> {
  static Result call(Args... args) {
    const ArgumentsAreRight checked;  // torch asks whether a deviation is negative
    Result result = Native(args...);
    if (C10_UNLIKELY(result.numel() == 0)) {
      reserve_philox(std::get<MaybeGenerator>(std::tuple<Args...>(args...)),
                     result.device().index());
    }
    return result;
  }
};

}  // namespace torch_npusim
