// SPDX-License-Identifier: BSD-3-Clause
// What the kernels of random operators share: draws by tiles, elements in row-major order whatever
// the strides, and the offsets of empty tensors.
// Invariant (rule R1): element i is the i-th in row-major order, so a tensor's strides, its memory
// format and the number of threads leave its values as they are.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "csrc/aten/philox.h"
#include "csrc/aten/row_major_walk.h"
#include "csrc/launch/launch.h"
#include "csrc/observers/observe.h"
#include "csrc/operands/alignment.h"
#include "csrc/routes/cpu_call.h"

namespace torch_npusim {

using MaybeGenerator = std::optional<at::Generator>;

// Elements of eight bytes take 64-bit draws.
template <class T>
using DrawFor = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

// for_each_tile() calls tile(first, count, draws) for all elements, kTileElements at a time.
template <class Draw, class Tile>
void for_each_tile(const PhiloxState& state, std::int64_t numel, const Tile& tile) {
  constexpr std::int64_t kGrainTiles = 64;
  const std::int64_t tiles = (numel + kTileElements - 1) / kTileElements;
  at::parallel_for(0, tiles, kGrainTiles, [&](std::int64_t begin, std::int64_t end) {
    Draw draws[kTileElements];
    for (std::int64_t first = begin * kTileElements; first < std::min(end * kTileElements, numel);
         first += kTileElements) {
      const std::int64_t count = std::min(kTileElements, numel - first);
      philox_draws(state, first, count, draws);
      tile(first, count, static_cast<const Draw*>(draws));
    }
  });
}

// host_address() is where kernels find the bytes at `data`, which may already be on the host.
inline void* host_address(void* data) {
  return npusim::is_device_address(data) ? npusim::kernel_alias(data) : data;
}

// fill() reserves offsets of `generator` and runs one command that writes make(draws, count,
// values) to every tile of `self`; make may write all kTileElements values.
template <class T, class Draw, class Make>
void fill(const char* op, const at::TensorBase& self, const MaybeGenerator& generator,
          const Make& make, double flops_per_element) {
  const PhiloxState state = reserve_philox(generator, self.device().index());
  const auto write = [&](const at::TensorBase& to) {
    note_use(to, Use::writes);
    T* data = static_cast<T*>(host_address(to.mutable_data_ptr()));
    const bool contiguous = to.is_contiguous();
    const RowMajorWalk<1> walk(to.sizes(), {to.strides()});
    for_each_tile<Draw>(
        state, to.numel(), [&](std::int64_t first, std::int64_t count, const Draw* draws) {
          T values[kTileElements];
          make(draws, count, values);
          if (contiguous) {
            std::copy_n(values, count, data + first);
          } else {
            walk.run(first, count,
                     [&](std::int64_t k, const auto& offsets) { data[offsets[0]] = values[k]; });
          }
        });
  };
  const auto body = [&](c10::DeviceIndex device) {
    // Short of an aligned copy no view is needed, and small tensors are filled without its cost.
    if (C10_LIKELY(strict_align() != StrictAlign::copy)) return write(self);
    CpuCall call(op, device);
    write(call.view(at::Tensor(self), /*written=*/true));
    call.finish();
  };
  launch(op, {&self}, body, flops_per_element);
}

// Drawing<f>::call is the native function f, which returns before its kernel when there is nothing
// to fill; call then reserves the offsets all the same (rule R2).
template <auto Native>
struct Drawing;
template <class Result, class... Args, Result (*Native)(Args...)>
struct Drawing<Native> {
  static Result call(Args... args) {
    Result result = Native(args...);
    if (C10_UNLIKELY(result.numel() == 0)) {
      reserve_philox(std::get<MaybeGenerator>(std::tuple<Args...>(args...)),
                     result.device().index());
    }
    return result;
  }
};

}  // namespace torch_npusim
