// SPDX-License-Identifier: BSD-3-Clause
// Tiles of draws, and the command that writes values made of them: what no type changes.
#include "csrc/aten/random_fill.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "csrc/observers/observe.h"
#include "csrc/operands/alignment.h"

namespace torch_npusim {

namespace {

// host_address() is where kernels find the bytes at `data`, which may already be on the host.
void* host_address(void* data) {
  return npusim::is_device_address(data) ? npusim::kernel_alias(data) : data;
}

// scatter() writes values, each a Word, to where a walk of `to` finds elements from `first` on.
template <class Word>
void scatter(const RowMajorWalk<1>& walk, std::int64_t first, std::int64_t count,
             const std::byte* values, std::byte* to) {
  walk.run(first, count, [&](std::int64_t k, const auto& offsets) {
    std::memcpy(to + offsets[0] * static_cast<std::int64_t>(sizeof(Word)),
                values + k * static_cast<std::int64_t>(sizeof(Word)), sizeof(Word));
  });
}

void write_tiles(const at::TensorBase& to, const PhiloxState& state, std::size_t draw_bytes,
                 const Make& make) {
  note_use(to, Use::writes);
  auto* data = static_cast<std::byte*>(host_address(to.mutable_data_ptr()));
  const auto bytes = static_cast<std::int64_t>(to.itemsize());
  const bool contiguous = to.is_contiguous();
  const RowMajorWalk<1> walk(to.sizes(), {to.strides()});
  each_tile(state, to.numel(), draw_bytes,
            [&](std::int64_t first, std::int64_t count, const void* draws) {
              alignas(std::uint64_t) std::byte values[kTileElements * sizeof(std::uint64_t)];
              make(draws, count, values);
              if (contiguous) {
                std::memcpy(data + first * bytes, values, static_cast<std::size_t>(count * bytes));
              } else if (bytes == 1) {
                scatter<std::uint8_t>(walk, first, count, values, data);
              } else if (bytes == 2) {
                scatter<std::uint16_t>(walk, first, count, values, data);
              } else if (bytes == 4) {
                scatter<std::uint32_t>(walk, first, count, values, data);
              } else {
                scatter<std::uint64_t>(walk, first, count, values, data);
              }
            });
}

}  // namespace

void each_tile(const PhiloxState& state, std::int64_t numel, std::size_t draw_bytes,
               const Tile& tile) {
  constexpr std::int64_t kGrainTiles = 64;
  const std::int64_t tiles = (numel + kTileElements - 1) / kTileElements;
  at::parallel_for(0, tiles, kGrainTiles, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t draws[kTileElements];
    for (std::int64_t first = begin * kTileElements; first < std::min(end * kTileElements, numel);
         first += kTileElements) {
      const std::int64_t count = std::min(kTileElements, numel - first);
      if (draw_bytes == sizeof(std::uint64_t)) {
        philox_draws(state, first, count, draws);
        tile(first, count, draws);
      } else {
        std::uint32_t halves[kTileElements];
        philox_draws(state, first, count, halves);
        tile(first, count, halves);
      }
    }
  });
}

void fill_tiles(const char* op, const at::TensorBase& self, const MaybeGenerator& generator,
                std::size_t draw_bytes, const Make& make, double flops_per_element) {
  const PhiloxState state = reserve_philox(generator, self.device().index());
  const auto body = [&](c10::DeviceIndex device) {
    // Short of an aligned copy no view is needed, and small tensors are filled without its cost.
    if (C10_LIKELY(strict_align() != StrictAlign::copy)) {
      return write_tiles(self, state, draw_bytes, make);
    }
    CpuCall call(op, device);
    write_tiles(call.view(at::Tensor(self), /*written=*/true), state, draw_bytes, make);
    call.finish();
  };
  launch(op, {&self}, body, flops_per_element);
}

}  // namespace torch_npusim
