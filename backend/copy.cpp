// SPDX-License-Identifier: BSD-3-Clause
// Bodies capture translated addresses by value, so that a later executor may run them when the
// caller has gone on.
#include "backend/copy.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "backend/error.h"
#include "backend/host_memory.h"
#include "backend/memory.h"

namespace npusim {

namespace {

constexpr std::size_t kMaxDims = 64;

// "copy_h2d" and so on, as profiles and fault rules name them.
const char* kind_name(CommandKind kind) {
  switch (kind) {
    case CommandKind::copy_h2d:
      return "copy_h2d";
    case CommandKind::copy_d2h:
      return "copy_d2h";
    case CommandKind::copy_d2d:
      return "copy_d2d";
    default:
      return "copy_peer";
  }
}

// Refuses a range that starts in one device and ends outside it.
void check_range(const void* pointer, std::size_t bytes) {
  const int device = device_of(pointer);
  NPUSIM_CHECK(device < 0 || device_of(static_cast<const char*>(pointer) + (bytes - 1)) == device,
               "a copy of ", bytes, " bytes at ", pointer, " reaches beyond npusim device ",
               device);
}

// Where the bytes really are.
void* reachable(void* pointer) {
  return is_device_address(pointer) ? host_alias(pointer) : pointer;
}
const void* reachable(const void* pointer) {
  return is_device_address(pointer) ? host_alias(pointer) : pointer;
}

CommandInfo describe(CommandKind kind, std::size_t bytes) {
  // Within a device each byte is read and written by the same memory; over a link it passes once.
  const double passes = kind == CommandKind::copy_d2d ? 2 : 1;
  return {kind_name(kind), kind, {0, passes * static_cast<double>(bytes), Precision::other}};
}

void finish(CommandKind kind, const void* dst, Stream& stream, bool blocking) {
  if (in_command_body()) return;  // part of another command, which nobody has waited for (S4)
  if (blocking || (kind == CommandKind::copy_d2h && !is_pinned(dst))) {
    stream.synchronize();
  }
}

// A strided copy in its simplest form: no dimension of one element, neighbours joined.
struct Plan {
  char* dst;
  const char* src;
  std::size_t element_bytes;
  std::size_t dims = 0;
  std::array<std::int64_t, kMaxDims> sizes, dst_strides, src_strides;

  void push(std::int64_t size, std::int64_t dst_stride, std::int64_t src_stride) {
    if (dims > 0 && dst_strides[dims - 1] == dst_stride * size &&
        src_strides[dims - 1] == src_stride * size) {
      --dims;
      size *= sizes[dims];
    }
    sizes[dims] = size;
    dst_strides[dims] = dst_stride;
    src_strides[dims] = src_stride;
    ++dims;
  }
  // Writing in address order is what caches like; the order of elements does not matter.
  void sort_by_dst_stride(const StridedCopy& layout, std::span<std::size_t> order) const {
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const std::int64_t stride_a = std::abs(layout.dst_strides_bytes[a]);
      const std::int64_t stride_b = std::abs(layout.dst_strides_bytes[b]);
      return stride_a != stride_b ? stride_a > stride_b : a < b;
    });
  }
  void run() const;
};

template <std::size_t Bytes>
void copy_row(char* dst, std::int64_t dst_stride, const char* src, std::int64_t src_stride,
              std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(dst + i * dst_stride, src + i * src_stride, Bytes);
  }
}

void copy_row(std::size_t element_bytes, char* dst, std::int64_t dst_stride, const char* src,
              std::int64_t src_stride, std::int64_t count) {
  const auto element = static_cast<std::int64_t>(element_bytes);
  if (dst_stride == element && src_stride == element) {
    std::memcpy(dst, src, element_bytes * static_cast<std::size_t>(count));
    return;
  }
  switch (element_bytes) {
    case 1:
      return copy_row<1>(dst, dst_stride, src, src_stride, count);
    case 2:
      return copy_row<2>(dst, dst_stride, src, src_stride, count);
    case 4:
      return copy_row<4>(dst, dst_stride, src, src_stride, count);
    case 8:
      return copy_row<8>(dst, dst_stride, src, src_stride, count);
    case 16:
      return copy_row<16>(dst, dst_stride, src, src_stride, count);
    default:
      for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(dst + i * dst_stride, src + i * src_stride, element_bytes);
      }
  }
}

// Counts the outer dimensions like an odometer; the last one is a row.
void Plan::run() const {
  if (dims == 0) {
    std::memcpy(dst, src, element_bytes);
    return;
  }
  const std::size_t last = dims - 1;
  std::array<std::int64_t, kMaxDims> index{};
  char* to = dst;
  const char* from = src;
  for (;;) {
    copy_row(element_bytes, to, dst_strides[last], from, src_strides[last], sizes[last]);
    std::size_t dim = last;
    for (;; --dim) {
      if (dim == 0) return;
      to += dst_strides[dim - 1];
      from += src_strides[dim - 1];
      if (++index[dim - 1] < sizes[dim - 1]) break;
      to -= dst_strides[dim - 1] * sizes[dim - 1];
      from -= src_strides[dim - 1] * sizes[dim - 1];
      index[dim - 1] = 0;
    }
  }
}

void check_layout(const StridedCopy& layout) {
  const std::size_t dims = layout.sizes.size();
  NPUSIM_CHECK(dims <= kMaxDims && layout.dst_strides_bytes.size() == dims &&
                   layout.src_strides_bytes.size() == dims && layout.element_bytes > 0,
               "a strided copy needs sizes and strides of one length up to ", kMaxDims,
               " and elements of 1 byte or more; given: ", dims, " sizes, ",
               layout.dst_strides_bytes.size(), " and ", layout.src_strides_bytes.size(),
               " strides, ", layout.element_bytes, " bytes");
}

// The number of elements; 0 when a dimension is empty.
std::size_t element_count(const StridedCopy& layout) {
  std::size_t count = 1;
  for (const std::int64_t size : layout.sizes) {
    NPUSIM_CHECK(size >= 0, "a strided copy has a dimension of ", size, " elements");
    count *= static_cast<std::size_t>(size);
  }
  return count;
}

}  // namespace

CommandKind copy_kind(const void* dst, const void* src) {
  const int to = device_of(dst);
  const int from = device_of(src);
  NPUSIM_CHECK(to >= 0 || from >= 0, "neither ", dst, " nor ", src,
               " is an address of a npusim device; copy host memory with memcpy");
  if (from < 0) return CommandKind::copy_h2d;
  if (to < 0) return CommandKind::copy_d2h;
  return to == from ? CommandKind::copy_d2d : CommandKind::copy_peer;
}

void copy(void* dst, const void* src, std::size_t bytes, Stream& stream, bool blocking) {
  check_not_forked();
  if (bytes == 0) return;
  const CommandKind kind = copy_kind(dst, src);
  check_range(dst, bytes);
  check_range(src, bytes);
  void* const to = reachable(dst);
  const void* const from = reachable(src);
  submit(stream, describe(kind, bytes), [to, from, bytes] { std::memmove(to, from, bytes); });
  finish(kind, dst, stream, blocking);
}

void copy_strided(const StridedCopy& layout, Stream& stream, bool blocking) {
  check_not_forked();
  check_layout(layout);
  const std::size_t count = element_count(layout);
  if (count == 0) return;
  const CommandKind kind = copy_kind(layout.dst, layout.src);
  Plan plan{static_cast<char*>(reachable(layout.dst)),
            static_cast<const char*>(reachable(layout.src)),
            layout.element_bytes,
            0,
            {},
            {},
            {}};
  std::array<std::size_t, kMaxDims> order;
  const std::span<std::size_t> used(order.data(), layout.sizes.size());
  for (std::size_t dim = 0; dim < used.size(); ++dim) used[dim] = dim;
  plan.sort_by_dst_stride(layout, used);
  for (const std::size_t dim : used) {
    if (layout.sizes[dim] == 1) continue;
    plan.push(layout.sizes[dim], layout.dst_strides_bytes[dim], layout.src_strides_bytes[dim]);
  }
  submit(stream, describe(kind, count * layout.element_bytes), [plan] { plan.run(); });
  finish(kind, layout.dst, stream, blocking);
}

void fill_bytes(void* dst, unsigned char value, std::size_t bytes, Stream& stream) {
  check_not_forked();
  if (bytes == 0) return;
  NPUSIM_CHECK(is_device_address(dst), dst, " is not an address of a npusim device");
  check_range(dst, bytes);
  void* const to = reachable(dst);
  const CommandInfo info{
      "fill", CommandKind::fill, {0, static_cast<double>(bytes), Precision::other}};
  submit(stream, info, [to, value, bytes] { std::memset(to, value, bytes); });
}

}  // namespace npusim
