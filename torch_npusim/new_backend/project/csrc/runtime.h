// SPDX-License-Identifier: BSD-3-Clause
// The joint of torch and the driver: devices, memory, random numbers, and the fallback to the CPU.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "driver.h"

namespace mychip {

// Raises what the driver says, as torch.OutOfMemoryError or RuntimeError.
void check(mychip_status status);

c10::DeviceIndex device_count();
c10::DeviceIndex current_device();
void set_device(c10::DeviceIndex device);                   // raises for one that is not there
c10::DeviceIndex exchange_device(c10::DeviceIndex device);  // returns the one before
c10::Allocator* allocator();                                // of the current device
std::size_t allocated_bytes(c10::DeviceIndex device);       // of live tensors
void grow(const c10::Storage& storage, std::size_t bytes);  // keeps what is in it

// Random numbers depend on a seed and an offset, which every draw moves on.
struct Draw {
  std::uint64_t seed;
  std::uint64_t offset;
};
const at::Generator& default_generator(c10::DeviceIndex device);
Draw reserve(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
             std::uint64_t count);
Draw generator_state(c10::DeviceIndex device);
void set_generator_state(c10::DeviceIndex device, Draw state);

// Computes an operator on the CPU, and counts it: overload -> calls.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);
std::map<std::string, std::int64_t> fallback_counts();

}  // namespace mychip
