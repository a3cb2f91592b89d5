// SPDX-License-Identifier: BSD-3-Clause
// A mychip in software: two devices of 1 GiB each, whose memory is the host's. Whatever is launched
// has finished when the call returns, so no stream waits for another. Addresses are checked.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "driver.h"

namespace {

constexpr int kDevices = 2;
constexpr std::size_t kCapacity = std::size_t{1} << 30;
constexpr std::size_t kAlignment = 64;

struct Device {
  std::map<std::uintptr_t, std::size_t> blocks;  // where each begins -> bytes
  std::size_t used = 0;
};

std::mutex mutex;
Device* devices() {
  static Device all[kDevices];
  return all;
}

bool exists(int device) { return device >= 0 && device < kDevices; }
bool has_stream(int stream) { return stream >= 0 && stream < MYCHIP_STREAMS; }

mychip_status checked(int device, const void* address, std::size_t bytes) {
  if (!exists(device)) return MYCHIP_NO_SUCH_DEVICE;
  if (bytes == 0) return MYCHIP_OK;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto& blocks = devices()[device].blocks;
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  auto after = blocks.upper_bound(begin);
  if (after == blocks.begin()) return MYCHIP_BAD_ADDRESS;
  --after;
  return begin + bytes <= after->first + after->second ? MYCHIP_OK : MYCHIP_BAD_ADDRESS;
}

}  // namespace

const char* mychip_status_text(mychip_status status) {
  switch (status) {
    case MYCHIP_OK:
      return "ok";
    case MYCHIP_NO_SUCH_DEVICE:
      return "no such device";
    case MYCHIP_NO_SUCH_STREAM:
      return "no such stream";
    case MYCHIP_OUT_OF_MEMORY:
      return "out of memory";
    case MYCHIP_BAD_ADDRESS:
      return "an address that is not the device's";
  }
  return "unknown";
}

mychip_status mychip_device_count(int* count) {
  *count = kDevices;
  return MYCHIP_OK;
}

mychip_status mychip_device_name(int device, const char** name) {
  *name = "mychip in software";
  return exists(device) ? MYCHIP_OK : MYCHIP_NO_SUCH_DEVICE;
}

mychip_status mychip_memory_info(int device, size_t* free_bytes, size_t* total_bytes) {
  if (!exists(device)) return MYCHIP_NO_SUCH_DEVICE;
  const std::lock_guard<std::mutex> lock(mutex);
  *total_bytes = kCapacity;
  *free_bytes = kCapacity - devices()[device].used;
  return MYCHIP_OK;
}

mychip_status mychip_malloc(int device, size_t bytes, void** address) {
  if (!exists(device)) return MYCHIP_NO_SUCH_DEVICE;
  const std::lock_guard<std::mutex> lock(mutex);
  Device& there = devices()[device];
  if (bytes > kCapacity - there.used) return MYCHIP_OUT_OF_MEMORY;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  *address = std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
  if (*address == nullptr) return MYCHIP_OUT_OF_MEMORY;
  there.blocks[reinterpret_cast<std::uintptr_t>(*address)] = bytes;
  there.used += bytes;
  return MYCHIP_OK;
}

mychip_status mychip_free(int device, void* address) {
  if (!exists(device)) return MYCHIP_NO_SUCH_DEVICE;
  const std::lock_guard<std::mutex> lock(mutex);
  Device& there = devices()[device];
  const auto found = there.blocks.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == there.blocks.end()) return MYCHIP_BAD_ADDRESS;
  there.used -= found->second;
  there.blocks.erase(found);
  std::free(address);
  return MYCHIP_OK;
}

mychip_status mychip_copy_to_device(int device, int stream, void* to, const void* from,
                                    size_t bytes) {
  if (!has_stream(stream)) return MYCHIP_NO_SUCH_STREAM;
  const mychip_status status = checked(device, to, bytes);
  if (status == MYCHIP_OK && bytes > 0) std::memmove(to, from, bytes);
  return status;
}

mychip_status mychip_copy_to_host(int device, int stream, void* to, const void* from,
                                  size_t bytes) {
  if (!has_stream(stream)) return MYCHIP_NO_SUCH_STREAM;
  const mychip_status status = checked(device, from, bytes);
  if (status == MYCHIP_OK && bytes > 0) std::memmove(to, from, bytes);
  return status;
}

mychip_status mychip_copy_between(int to_device, int stream, void* to, int from_device,
                                  const void* from, size_t bytes) {
  const mychip_status status = checked(from_device, from, bytes);
  return status == MYCHIP_OK ? mychip_copy_to_device(to_device, stream, to, from, bytes) : status;
}

mychip_status mychip_launch(int device, int stream, mychip_kernel kernel, const void* arguments,
                            size_t bytes) {
  const mychip_status status = mychip_synchronize(device, stream);
  if (status != MYCHIP_OK) return status;
  const auto* first = static_cast<const unsigned char*>(arguments);
  const std::vector<unsigned char> copied(first, first + bytes);
  kernel(copied.data());
  return MYCHIP_OK;
}

mychip_status mychip_is_idle(int device, int stream, int* is_idle) {
  *is_idle = 1;
  return mychip_synchronize(device, stream);
}

mychip_status mychip_synchronize(int device, int stream) {
  if (!exists(device)) return MYCHIP_NO_SUCH_DEVICE;
  return has_stream(stream) ? MYCHIP_OK : MYCHIP_NO_SUCH_STREAM;
}

struct mychip_event {
  std::chrono::steady_clock::time_point time;
};

mychip_status mychip_event_record(int device, int stream, mychip_event** event) {
  const mychip_status status = mychip_synchronize(device, stream);
  if (status != MYCHIP_OK) return status;
  if (*event == nullptr) *event = new mychip_event;
  (*event)->time = std::chrono::steady_clock::now();
  return MYCHIP_OK;
}

mychip_status mychip_event_wait(int device, int stream, const mychip_event*) {
  return mychip_synchronize(device, stream);
}

mychip_status mychip_event_is_done(const mychip_event*, int* is_done) {
  *is_done = 1;
  return MYCHIP_OK;
}

mychip_status mychip_event_synchronize(const mychip_event*) { return MYCHIP_OK; }

mychip_status mychip_event_milliseconds(const mychip_event* event, double* milliseconds) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  *milliseconds = Milliseconds(event->time.time_since_epoch()).count();
  return MYCHIP_OK;
}

mychip_status mychip_event_free(mychip_event* event) {
  delete event;
  return MYCHIP_OK;
}
