// SPDX-License-Identifier: BSD-3-Clause
// The hooks by which torch knows a device: allocator, device guard, PrivateUse1 hooks, generator.
#include "runtime.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>

namespace mychip {
namespace {

constexpr c10::DeviceIndex kDevicesMax = 64;
thread_local c10::DeviceIndex current = 0;
std::atomic<std::size_t> allocated[kDevicesMax];

// What a tensor's memory needs to be freed, from whatever thread, while whatever device is current.
struct Block {
  c10::DeviceIndex device;
  void* address;
  std::size_t bytes;
};

void free_block(void* context) {
  const auto* block = static_cast<Block*>(context);
  mychip_free(block->device, block->address);  // a destructor has nobody to tell of an error
  allocated[block->device] -= block->bytes;
  delete block;
}

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::DeviceIndex index = current;
    const c10::Device device(c10::kPrivateUse1, index);
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    void* address = nullptr;
    check(mychip_malloc(index, bytes, &address));
    allocated[index] += bytes;
    return {address, new Block{index, address, bytes}, &free_block, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    check(mychip_copy_between(current, to, current, from, bytes));
  }
};
Memory memory;
REGISTER_ALLOCATOR(c10::kPrivateUse1, &memory)

// The software chip has one stream per device, on which everything has finished.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, current}; }
  void setDevice(c10::Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {c10::kPrivateUse1, exchange_device(device.index())};
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    check(mychip_synchronize(stream.device_index()));
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    check(mychip_synchronize(device));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

class ChipGenerator final : public c10::GeneratorImpl {
 public:
  explicit ChipGenerator(c10::DeviceIndex device)
      : GeneratorImpl({c10::kPrivateUse1, device},
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  static c10::DeviceType device_type() { return c10::kPrivateUse1; }

  void set_current_seed(std::uint64_t seed) override { state = {seed, 0}; }
  void set_offset(std::uint64_t offset) override { state.offset = offset; }
  std::uint64_t get_offset() const override { return state.offset; }
  std::uint64_t current_seed() const override { return state.seed; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state.seed;
  }
  void set_state(const c10::TensorImpl& bytes) override {
    TORCH_CHECK(bytes.is_cpu() && bytes.dtype() == caffe2::TypeMeta::Make<std::uint8_t>() &&
                    bytes.numel() == sizeof(Draw) && bytes.is_contiguous(),
                "mychip: the state of a generator is a CPU tensor of ", sizeof(Draw), " bytes");
    std::memcpy(&state, bytes.data(), sizeof(Draw));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor bytes = at::empty({sizeof(Draw)}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), &state, sizeof(Draw));
    return bytes.getIntrusivePtr();
  }

  Draw state{c10::default_rng_seed_val, 0};

 private:
  ChipGenerator* clone_impl() const override {
    auto* other = new ChipGenerator(device().index());
    other->state = state;
    return other;
  }
};

ChipGenerator& of_chip(const at::Generator& generator) {
  return *at::check_generator<ChipGenerator>(generator);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current : exchange_device(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<ChipGenerator>(device < 0 ? current : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    grow(storage, bytes);
  }
};
[[maybe_unused]] const bool hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // lives as long as the process
  return true;
}();

}  // namespace

void check(mychip_status status) {
  TORCH_CHECK_WITH(OutOfMemoryError, status != MYCHIP_OUT_OF_MEMORY, "mychip: out of memory");
  TORCH_CHECK(status == MYCHIP_OK, "mychip: ", mychip_status_text(status));
}

c10::DeviceIndex device_count() {
  static const c10::DeviceIndex count = [] {
    int found = 0;
    check(mychip_device_count(&found));
    return static_cast<c10::DeviceIndex>(std::min<int>(found, kDevicesMax));
  }();
  return count;
}

c10::DeviceIndex current_device() { return current; }

void set_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "mychip: no device ",
              static_cast<int>(device), "; there are ", static_cast<int>(device_count()));
  current = device;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  const c10::DeviceIndex before = current;
  set_device(device);
  return before;
}

c10::Allocator* allocator() { return &memory; }

std::size_t allocated_bytes(c10::DeviceIndex device) { return allocated[device]; }

void grow(const c10::Storage& storage, std::size_t bytes) {
  const c10::DeviceIndex device = storage.device().index();
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr larger = memory.allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) check(mychip_copy_between(device, larger.get(), device, storage.data(), kept));
  storage.set_data_ptr(std::move(larger));
  storage.set_nbytes(bytes);
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::deque<at::Generator> all = [] {
    std::deque<at::Generator> made;
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      made.push_back(at::make_generator<ChipGenerator>(index));
    }
    return made;
  }();
  const c10::DeviceIndex chosen = device < 0 ? current : device;
  TORCH_CHECK(chosen < device_count(), "mychip: no device ", static_cast<int>(chosen));
  return all[chosen];
}

Draw reserve(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
             std::uint64_t count) {
  at::Generator from = generator && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(from.device().is_privateuseone(), "mychip: a generator of ", from.device());
  const std::lock_guard<std::mutex> lock(from.mutex());
  Draw& state = of_chip(from).state;
  const Draw drawn = state;
  state.offset += count;
  return drawn;
}

Draw generator_state(c10::DeviceIndex device) { return of_chip(default_generator(device)).state; }

void set_generator_state(c10::DeviceIndex device, Draw state) {
  of_chip(default_generator(device)).state = state;
}

}  // namespace mychip
