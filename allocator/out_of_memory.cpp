// SPDX-License-Identifier: BSD-3-Clause
// The text follows CUDA's sentence by sentence, so that programs and people that search it find
// what they look for, and adds what users asked for: fragmentation, the largest free block, advice
// that fits.
#include "allocator/out_of_memory.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "allocator/config.h"

namespace npusim::alloc {
namespace {

std::string advice(const OutOfMemoryReport& report) {
  using Cause = OutOfMemoryReport::Cause;
  if (report.cause == Cause::over_one_exabyte) {
    return "A request of this size is usually a negative number or an overflow: check the shape.";
  }
  if (report.cause == Cause::ram_full) {
    return "The simulated device has room, the machine under it has not: use smaller tensors, or "
           "give this process more memory.";
  }
  if (report.cause == Cause::over_limit) {
    return "A larger memory fraction would allow more.";
  }
  if (report.pending_bytes >= report.segment_bytes) {
    return "Much memory is freed but waits for other streams: synchronize them, or call "
           "record_stream less.";
  }
  if (report.cached_bytes >= report.segment_bytes) {
    return "Enough memory is free but in pieces: allocate the largest tensors first, keep sizes "
           "uniform, or try PYTORCH_ALLOC_CONF=max_split_size_mb:<MiB> or "
           "roundup_power2_divisions:<n>.";
  }
  return "Use smaller tensors or batches, free some, or give the simulated device more memory.";
}

std::string as_sentence(std::string words) {
  words.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(words.front())));
  if (words.back() != '.') words += '.';
  return words;
}

}  // namespace

double OutOfMemoryReport::fragmentation() const noexcept {
  if (cached_bytes == 0) return 0.0;
  return 1.0 - static_cast<double>(largest_free_bytes) / static_cast<double>(cached_bytes);
}

std::string format_bytes(std::size_t bytes) {
  if (bytes <= kKiB) return std::to_string(bytes) + " bytes";
  const char* unit = bytes <= kMiB ? "KiB" : bytes <= kGiB ? "MiB" : "GiB";
  const std::size_t divisor = bytes <= kMiB ? kKiB : bytes <= kGiB ? kMiB : kGiB;
  char text[64];
  std::snprintf(text, sizeof text, "%.2f %s",
                static_cast<double>(bytes) / static_cast<double>(divisor), unit);
  return text;
}

std::string format_out_of_memory(const OutOfMemoryReport& report, std::string_view device_name,
                                 int device_index, std::string_view remedy) {
  const std::string name(device_name);
  std::string text = name + " out of memory. ";
  if (report.cause == OutOfMemoryReport::Cause::over_one_exabyte) {
    text +=
        "Tried to allocate more than 1EB memory (" + format_bytes(report.requested_bytes) + "). ";
  } else {
    text += "Tried to allocate " + format_bytes(report.segment_bytes) + ". ";
  }
  text += (name == "CUDA" ? "GPU" : name) + " " + std::to_string(device_index) +
          " has a total capacity of " + format_bytes(report.total_bytes) + " of which " +
          format_bytes(report.free_bytes) + " is free";
  if (report.allowed_bytes) {
    const std::size_t allowed = *report.allowed_bytes;
    text += ", but this process may use no more than " + format_bytes(allowed) + ", of which " +
            format_bytes(allowed - std::min(allowed, report.reserved_bytes)) + " is left";
  }
  text += ". ";
  if (!report.reason.empty()) text += as_sentence(report.reason) + " ";
  const std::size_t unallocated = report.reserved_bytes - report.allocated_bytes;
  text += "Of the allocated memory " + format_bytes(report.allocated_bytes) +
          " is allocated by PyTorch, and " + format_bytes(unallocated) +
          " is reserved by PyTorch but unallocated. ";
  char fragmentation[32];
  std::snprintf(fragmentation, sizeof fragmentation, "%.1f %%", 100.0 * report.fragmentation());
  text += "Of that, the largest free block is " + format_bytes(report.largest_free_bytes) +
          " (fragmentation " + fragmentation + ")";
  if (report.pending_bytes > 0) {
    text += " and " + format_bytes(report.pending_bytes) + " waits for other streams";
  }
  if (report.private_cached_bytes > 0) {
    text += "; " + format_bytes(report.private_cached_bytes) +
            " is free in private pools, for requests to those only";
  }
  return text + ". " + (remedy.empty() ? advice(report) : std::string(remedy));
}

}  // namespace npusim::alloc
