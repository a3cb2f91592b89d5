// SPDX-License-Identifier: BSD-3-Clause
// Four exception types, one per reaction of the caller, and the two checks that throw them.
// Every message states the value given, the value expected and the remedy.
// csrc/errors.cpp translates the types for torch.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace npusim {

// Error is the base of everything that backend/ throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// InvalidArgument: the caller's mistake; state is unchanged and the call may be repeated corrected.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// OutOfMemory: the device, RAM or the address space has less than was asked for. State is
// unchanged; the call may succeed after memory was freed.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// DeviceFault: an asynchronous failure of the simulated device, reported at a later call (rules
// F1-F5). The device works again, unless it is lost.
class DeviceFault : public Error {
 public:
  using Error::Error;
};

// InternalError: a broken invariant of npusim itself.
class InternalError : public Error {
 public:
  using Error::Error;
};

namespace detail {

[[noreturn]] void throw_invalid_argument(const std::string& message);
[[noreturn]] void throw_internal_error(const char* condition, const char* file, int line);

template <class... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace detail

// format_bytes(): 1536 -> "1.50 KiB", 17179869184 -> "16.00 GiB"; below one KiB "n bytes".
std::string format_bytes(unsigned long long bytes);

}  // namespace npusim

// NPUSIM_CHECK(condition, parts...) throws InvalidArgument with the joined parts.
#define NPUSIM_CHECK(condition, ...)                                                 \
  do {                                                                               \
    if (!(condition)) [[unlikely]]                                                   \
      ::npusim::detail::throw_invalid_argument(::npusim::detail::join(__VA_ARGS__)); \
  } while (false)

// NPUSIM_ASSERT(condition) throws InternalError: a defect of npusim, never of the caller.
#define NPUSIM_ASSERT(condition)                                              \
  do {                                                                        \
    if (!(condition)) [[unlikely]]                                            \
      ::npusim::detail::throw_internal_error(#condition, __FILE__, __LINE__); \
  } while (false)
