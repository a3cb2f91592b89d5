// SPDX-License-Identifier: BSD-3-Clause
// The joint of torch and the driver: devices, streams, memory, random numbers, the fallback.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "driver.h"

namespace mychip {

constexpr c10::DeviceIndex kDevicesMax = 64;

// Raises what the driver says, as torch.OutOfMemoryError or RuntimeError.
void check(mychip_status status);

// Raises in a forked child of a process that used the device; true there without raising.
void check_process();
bool is_in_bad_fork();

c10::DeviceIndex device_count();
c10::DeviceIndex current_device();
void set_device(c10::DeviceIndex device);                   // raises for one that is not there
c10::DeviceIndex exchange_device(c10::DeviceIndex device);  // returns the one before
int current_stream(c10::DeviceIndex device);                // of this thread, as the driver counts

c10::DeviceAllocator* allocator();                          // of the current device
void grow(const c10::Storage& storage, std::size_t bytes);  // keeps what is in it

// Random numbers depend on a seed and an offset, which every draw moves on.
struct Draw {
  std::uint64_t seed;
  std::uint64_t offset;
};
const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);
Draw reserve(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
             std::uint64_t count);

// Computes an operator on the CPU, and counts it: overload -> calls.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);
std::map<std::string, std::int64_t> fallback_counts();

}  // namespace mychip
