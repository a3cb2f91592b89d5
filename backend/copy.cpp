// SPDX-License-Identifier: BSD-3-Clause
// A copy is one memmove() between translated addresses; its kind decides what it costs and whether
// the host waits.
#include "backend/copy.h"

#include <cstring>

#include "backend/error.h"
#include "backend/graph.h"
#include "backend/memory.h"
#include "backend/observer.h"
#include "backend/pinned_memory.h"
#include "backend/stream_waits.h"

namespace npusim {

namespace {

// "copy_h2d" and so on, as profiles and faults name them.
const char* kind_name(CommandKind kind) {
  switch (kind) {
    case CommandKind::copy_h2d:
    case CommandKind::copy_h2d_pageable:
      return "copy_h2d";
    case CommandKind::copy_d2h:
    case CommandKind::copy_d2h_pageable:
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
  return is_device_address(pointer) ? kernel_alias(pointer) : pointer;
}
const void* reachable(const void* pointer) {
  return is_device_address(pointer) ? kernel_alias(pointer) : pointer;
}

CommandInfo describe(CommandKind kind, std::size_t bytes) {
  // Within a device each byte is read and written by the same memory; over a link it passes once.
  const double passes = kind == CommandKind::copy_d2d ? 2 : 1;
  return {kind_name(kind), kind, {0, passes * static_cast<double>(bytes), Precision::other}};
}

// The host would have to keep its memory as it is until a graph has been replayed the last time.
void check_may_be_captured(CommandKind kind, const Stream& stream) {
  if (kind == CommandKind::copy_h2d_pageable && !in_command_body()) {
    detail::check_may_wait("copying from host memory that is not pinned", &stream);
  }
}

void finish(CommandKind kind, Stream& stream, bool blocking) {
  if (in_command_body()) return;  // part of another command, which nobody has waited for (S4)
  if (blocking || kind == CommandKind::copy_d2h_pageable) wait_unheard(stream);
}

}  // namespace

CommandKind copy_kind(const void* dst, const void* src) {
  const int to = device_of(dst);
  const int from = device_of(src);
  NPUSIM_CHECK(to >= 0 || from >= 0, "neither ", dst, " nor ", src,
               " is an address of a npusim device; copy host memory with memcpy");
  if (from < 0) return is_pinned(src) ? CommandKind::copy_h2d : CommandKind::copy_h2d_pageable;
  if (to < 0) return is_pinned(dst) ? CommandKind::copy_d2h : CommandKind::copy_d2h_pageable;
  return to == from ? CommandKind::copy_d2d : CommandKind::copy_peer;
}

void copy(void* dst, const void* src, std::size_t bytes, Stream& stream, bool blocking) {
  check_not_forked();
  if (bytes == 0) return;
  const CommandKind kind = copy_kind(dst, src);
  check_may_be_captured(kind, stream);
  check_range(dst, bytes);
  check_range(src, bytes);
  void* const to = reachable(dst);
  const void* const from = reachable(src);
  submit(stream, describe(kind, bytes), [=] {
    note_range(src, bytes, /*written=*/false);
    note_range(dst, bytes, /*written=*/true);
    std::memmove(to, from, bytes);
  });
  if (dry() && !is_device_address(dst)) std::memset(dst, 0, bytes);
  finish(kind, stream, blocking);
}

}  // namespace npusim
