// SPDX-License-Identifier: BSD-3-Clause
// DeviceLauncher: how code that includes no header of torch runs a kernel on npusim, such as what
// torch.compile generates. Who asks for a launch says itself what the command is called, what it
// costs and what it touches; <torch_npusim/kernel.h> finds that out from tensors.
//
//   const float* in = launcher->kernel_address(user_address);
//   launcher->launch({"mine::twice", /*bytes=*/8.0 * n, /*flops=*/n}, [=] { ... in[i] ... });
//
// Invariant: only the body may dereference what kernel_address() returns. The body holds addresses
// and numbers by value; a graph copies it and runs it again, if the command says what it writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace torch_npusim {

// One thing that a command reads or writes, for whoever watches the device, and for graphs. A
// command tells all or none.
struct DeviceOperand {
  const void* first;  // user address of its first element
  const char* type;   // of its elements, "float32"; lives as long as the process
  std::int64_t element_bytes;
  bool written;
  std::int64_t dimensions;
  const std::int64_t* sizes;    // in elements
  const std::int64_t* strides;  // in elements
};

// The classes of arithmetic that a device has a rate for.
enum class DevicePrecision : std::int64_t { f32, f64, f16, i8, other };

struct DeviceCommand {
  const char* name;  // lives as long as the process
  double bytes;      // read plus written
  double flops;
  DevicePrecision precision = DevicePrecision::f32;
  const DeviceOperand* operands = nullptr;
  std::int64_t operand_count = 0;
};

struct DeviceLauncher {
  static constexpr std::int64_t kVersion = 1;
  std::int64_t version;
  std::int64_t device;
  std::int64_t kernel_delta;  // address for kernels = address for users + kernel_delta
  void (*launch_erased)(const DeviceLauncher&, const DeviceCommand&, void (*run)(const void* body),
                        const void* body, std::size_t body_bytes);

  template <class T>
  T* kernel_address(T* user_address) const {
    return user_address == nullptr
               ? nullptr
               : reinterpret_cast<T*>(reinterpret_cast<std::intptr_t>(user_address) + kernel_delta);
  }

  // launch() runs body() as one command on the current stream of the device. Raises what a device
  // raises; an injected fault keeps the body from running.
  template <class Body>
  void launch(const DeviceCommand& command, const Body& body) const {
    static_assert(std::is_trivially_copyable_v<Body>, "the body holds addresses and numbers only");
    launch_erased(
        *this, command, [](const void* erased) { (*static_cast<const Body*>(erased))(); }, &body,
        sizeof(Body));
  }
};

}  // namespace torch_npusim
