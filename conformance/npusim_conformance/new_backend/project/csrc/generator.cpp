// SPDX-License-Identifier: BSD-3-Clause
// Generators of random numbers: what torch seeds, saves and restores.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>
#include <deque>
#include <mutex>

#include "runtime.h"

namespace mychip {
namespace {

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

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::deque<at::Generator> all = [] {
    std::deque<at::Generator> made;
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      made.push_back(at::make_generator<ChipGenerator>(index));
    }
    return made;
  }();
  const c10::DeviceIndex chosen = device < 0 ? current_device() : device;
  TORCH_CHECK(chosen < device_count(), "mychip: no device ", static_cast<int>(chosen));
  return all[chosen];
}

Draw reserve(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
             std::uint64_t count) {
  at::Generator from = generator && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(from.device().is_privateuseone(), "mychip: a generator of ", from.device());
  const std::lock_guard<std::mutex> lock(from.mutex());
  Draw& state = at::check_generator<ChipGenerator>(from)->state;
  const Draw drawn = state;
  state.offset += count;
  return drawn;
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<ChipGenerator>(device < 0 ? current_device() : device);
}

}  // namespace mychip
