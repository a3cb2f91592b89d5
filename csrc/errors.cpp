// SPDX-License-Identifier: BSD-3-Clause
// The one place where an error changes its type between the layers.
#include "csrc/errors.h"

#include <c10/util/Exception.h>

#include <string>
#include <string_view>

namespace torch_npusim {

namespace {
// The code that torch.AcceleratorError carries for a fault of the simulated device.
constexpr int32_t kDeviceFaultCode = 1;
constexpr int32_t kInvalidDeviceCode = 101;  // cudaErrorInvalidDevice

std::string with_cuda_named(std::string text) {
  constexpr std::string_view kOwn = "npusim";
  for (std::size_t at = 0; (at = text.find(kOwn, at)) != text.npos;) {
    text.replace(at, kOwn.size(), "CUDA");
  }
  return text;
}
}  // namespace

void rethrow_as_torch_error() {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  try {
    throw;
  } catch (const npusim::OutOfMemory& error) {
    throw c10::OutOfMemoryError(here, error.what());
  } catch (const npusim::DeviceFault& error) {
    throw c10::AcceleratorError(here, kDeviceFaultCode, error.what());
  } catch (const npusim::InvalidArgument& error) {
    const std::string text = error.what();
    if (g_speaks_cuda && text.rfind("invalid device ordinal", 0) == 0) {
      throw c10::AcceleratorError(here, kInvalidDeviceCode,
                                  "CUDA error: invalid device ordinal\n" + text);
    }
    // A forked child is refused in CUDA's words: PyTorch's own tests and libraries look for them.
    throw c10::Error(here, g_speaks_cuda && npusim::in_bad_fork() ? with_cuda_named(text) : text);
  } catch (const std::exception& error) {
    throw c10::Error(here, error.what());
  }
}

}  // namespace torch_npusim
