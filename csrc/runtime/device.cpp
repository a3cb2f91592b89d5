// SPDX-License-Identifier: BSD-3-Clause
// Validation of device indices and conversion of streams.
#include "csrc/runtime/device.h"

#include <c10/util/Exception.h>

#include "csrc/errors.h"

namespace torch_npusim {

c10::DeviceIndex checked_device(c10::DeviceIndex device) {
  if (C10_UNLIKELY(!npusim::initialized() || npusim::in_bad_fork())) {
    translated([] { npusim::initialize(); });
  }
  const int index = device == -1 ? npusim::current_device() : device;
  translated([&] { npusim::check_device(index); });
  return static_cast<c10::DeviceIndex>(index);
}

c10::DeviceIndex checked_device(const std::optional<c10::Device>& device) {
  if (!device.has_value()) return checked_device(static_cast<c10::DeviceIndex>(-1));
  TORCH_CHECK(device->is_privateuseone(), "Expected an npusim device, got ", *device);
  return checked_device(device->index());
}

npusim::Stream& backend_stream(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == c10::kPrivateUse1, "Expected a stream of an npusim device, ",
              "got one of ", stream.device());
  const c10::DeviceIndex device = checked_device(stream.device_index());
  return translated(
      [&]() -> npusim::Stream& { return npusim::stream_from_id(device, stream.id()); });
}

c10::Stream torch_stream(const npusim::Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE,
                     c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(stream.device())),
                     stream.id());
}

}  // namespace torch_npusim
