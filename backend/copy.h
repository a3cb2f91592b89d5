// SPDX-License-Identifier: BSD-3-Clause
// Copies between host and device, within a device and between devices, as commands (rule S6).
// Invariant: the kind of a copy follows from the two addresses; translation happens here only.
// Called by csrc/aten/copy.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/command.h"

namespace npusim {

// copy_kind() tells the kind from the addresses. Throws InvalidArgument when both are of the host.
CommandKind copy_kind(const void* dst, const void* src);

// copy() copies `bytes` in stream order. `blocking` waits for the stream; so does, always, a copy
// from the device to host memory that is not pinned. Within one device the ranges may overlap.
// Zero bytes are a no-op. Throws InvalidArgument, or DeviceFault where it waits.
void copy(void* dst, const void* src, std::size_t bytes, Stream& stream, bool blocking);

// An N-dimensional copy: element (i0, i1, ...) of `src` to the same element of `dst`. Strides are
// in bytes and may be zero (source) or negative; the three spans have one length.
struct StridedCopy {
  void* dst;
  const void* src;
  std::span<const std::int64_t> sizes;
  std::span<const std::int64_t> dst_strides_bytes;
  std::span<const std::int64_t> src_strides_bytes;
  std::size_t element_bytes;
};

// copy_strided() is copy() for strided operands, which must not overlap. One command; the bytes
// that count are the elements'.
void copy_strided(const StridedCopy& layout, Stream& stream, bool blocking);

// fill_bytes() sets `bytes` of device memory to `value` in stream order.
void fill_bytes(void* dst, unsigned char value, std::size_t bytes, Stream& stream);

}  // namespace npusim
