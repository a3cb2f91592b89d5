// SPDX-License-Identifier: BSD-3-Clause
// A policy from a shared library, spoken to through policy_abi.h. Libraries stay loaded: their
// tables live as long as they do. A library's errors with the device are refused, never
// thrown through its frames.
#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "allocator/placement/policies.h"
#include "allocator/placement/policy_abi.h"

namespace npusim::alloc {
namespace {

const npusim_policy_table* load(const std::string& path) {
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    throw InvalidArgument("policy " + path + ": is no regular file");  // a pipe would wait
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    throw InvalidArgument("policy " + path + ": cannot be loaded: " + (why ? why : "no reason"));
  }
  using Entry = const npusim_policy_table* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "npusim_policy"));
  if (!entry) {
    throw InvalidArgument(
        "policy " + path +
        ": exports no function npusim_policy; see allocator/placement/policy_abi.h");
  }
  const npusim_policy_table* table = entry();
  if (!table || table->abi_version != NPUSIM_POLICY_ABI_VERSION) {
    throw InvalidArgument("policy " + path + ": is of version " +
                          std::to_string(table ? table->abi_version : 0) +
                          " of the interface; expected " +
                          std::to_string(NPUSIM_POLICY_ABI_VERSION) + ": build it again");
  }
  if (!table->create || !table->destroy || !table->malloc || !table->free) {
    throw InvalidArgument("policy " + path + ": create, destroy, malloc or free is missing");
  }
  return table;
}

class LoadedPolicy final : public PlacementPolicy {
 public:
  LoadedPolicy(const std::string& path, const std::string& settings, PlacementDevice& device)
      : table_(load(path)), device_(device) {
    c_device_ = {.self = this,
                 .capacity_bytes = device.capacity_bytes(),
                 .acquire = &acquire,
                 .release = &release,
                 .stitch = &stitch,
                 .unstitch = &unstitch};
    std::array<char, 512> error{};
    policy_ = table_->create(&c_device_, settings.c_str(), error.data(), error.size());
    error.back() = '\0';
    if (!policy_) throw InvalidArgument("policy " + path + ": " + error.data());
  }
  ~LoadedPolicy() override { table_->destroy(policy_); }
  LoadedPolicy(const LoadedPolicy&) = delete;
  LoadedPolicy& operator=(const LoadedPolicy&) = delete;

  Placement malloc(const PlacementRequest& request) override {
    const npusim_request c_request = to_c(request);
    Placement placement{.address = 0, .bytes = request.bytes};
    placement.address = table_->malloc(policy_, &c_request, &placement.bytes);
    return placement;
  }
  void free(const Placement& placement, const PlacementRequest& request) override {
    const npusim_request c_request = to_c(request);
    table_->free(policy_, placement.address, &c_request);
  }
  void empty_cache() override {
    if (table_->empty_cache) table_->empty_cache(policy_);
  }

 private:
  static npusim_request to_c(const PlacementRequest& request) {
    return {.bytes = request.bytes,
            .number = request.number,
            .stream = request.stream,
            .pool = request.pool};
  }
  static PlacementDevice& of(void* self) { return static_cast<LoadedPolicy*>(self)->device_; }

  static std::uint64_t acquire(void* self, std::uint64_t bytes) {
    if (bytes == 0) {
      of(self).refuse("acquires 0 bytes");
      return 0;
    }
    const SegmentResult result = of(self).acquire_segment(bytes);
    return result.status == SegmentResult::Status::ok ? result.address : 0;
  }
  static void release(void* self, std::uint64_t address) { release_lent(of(self), address); }
  static std::uint64_t stitch(void* self, const std::uint64_t* addresses,
                              const std::uint64_t* bytes, std::size_t count) {
    try {
      std::vector<PlacementDevice::Piece> pieces;
      pieces.reserve(count);
      for (std::size_t i = 0; i < count; ++i) pieces.emplace_back(addresses[i], bytes[i]);
      return of(self).stitch(pieces);
    } catch (const InvalidArgument& error) {
      of(self).refuse(error.what());
      return 0;
    }
  }
  static void unstitch(void* self, std::uint64_t address) {
    try {
      of(self).unstitch(address);
    } catch (const InvalidArgument& error) {
      of(self).refuse(error.what());
    }
  }

  const npusim_policy_table* table_;
  PlacementDevice& device_;
  npusim_device c_device_{};
  void* policy_ = nullptr;
};

}  // namespace

PolicyPointer load_policy(std::string_view path, std::string_view settings,
                          PlacementDevice& device) {
  return std::make_unique<LoadedPolicy>(std::string(path), std::string(settings), device);
}

}  // namespace npusim::alloc
