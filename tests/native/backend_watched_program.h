// SPDX-License-Identifier: BSD-3-Clause
// Small programs on observed devices: commands that touch nothing and say what they touch.
#pragma once

#include <array>
#include <vector>

#include "backend/backend.h"
#include "backend/races.h"
#include "tests/native/check.h"

namespace npusim {

class TestDetector final : public RaceDetector {};

// The detector of the whole executable: observers live as long as the process.
inline TestDetector& detector() {
  static auto* made = new TestDetector;
  return *made;
}

// Watched attaches the detector for one test; the addresses are of the devices, but never touched.
struct Watched {
  Watched() {
    initialize();
    for (const int device : {0, 1}) synchronize_device(device);
    detector().forget();
    attach(detector());
  }
  ~Watched() { detach(detector()); }

  static Address address(std::size_t offset) { return g_address_map.base.load() + offset; }

  void allocate(Address base, std::size_t bytes, const Stream& stream, std::uint64_t pool = 0) {
    note_memory(MemoryKind::allocate, as_pointer(base), bytes, &stream, pool);
  }
  void free(Address base) { note_memory(MemoryKind::free, as_pointer(base), 0, nullptr); }
  void record_stream(Address base, const Stream& stream) {
    note_memory(MemoryKind::record_stream, as_pointer(base), 0, &stream);
  }

  // One access of `bytes` at `base` + `offset`.
  void run(Stream& stream, const char* name, Address base, bool written, std::size_t offset = 0,
           std::size_t bytes = 64) {
    const auto size = static_cast<std::int64_t>(bytes);
    const std::int64_t stride = 1;
    submit(stream, {name}, [&] {
      note_operand({base, base + offset, written, 1, "uint8", {&size, 1}, {&stride, 1}});
    });
  }
  void read(Stream& stream, Address base) { run(stream, "read", base, false); }
  void write(Stream& stream, Address base) { run(stream, "write", base, true); }
  // A row of `columns` elements of 4 bytes from each of `rows` rows of 64.
  void write_columns(Stream& stream, Address base, std::size_t first, std::int64_t columns,
                     std::int64_t rows = 8) {
    const std::array<std::int64_t, 2> sizes{rows, columns};
    const std::array<std::int64_t, 2> strides{64 * 4, 4};
    submit(stream, {"columns"},
           [&] { note_operand({base, base + 4 * first, true, 4, "float32", sizes, strides}); });
  }
  void host(const char* name, Address base, bool written) {
    const std::int64_t size = 64, stride = 1;
    note_host_access(name, {base, base, written, 1, "uint8", {&size, 1}, {&stride, 1}});
  }
  std::vector<Race> races() { return detector().take_races(); }

  static void* as_pointer(Address address) { return reinterpret_cast<void*>(address); }
};

}  // namespace npusim
