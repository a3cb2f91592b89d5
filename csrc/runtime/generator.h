// SPDX-License-Identifier: BSD-3-Clause
// The random number generator of a simulated device: Philox4x32-10, whose whole state is a seed and
// an offset (16 bytes: u64 seed, i64 offset, little endian, as DTensor expects).
// Invariant: the offset is a multiple of 4, and a call advances it by an amount that depends only
// on the operator (rule R2).
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <memory>
#include <optional>
#include <utility>

namespace torch_npusim {

struct PhiloxState {
  std::uint64_t seed;
  std::uint64_t offset;
};

class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  explicit PhiloxGenerator(c10::DeviceIndex device);
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  void set_current_seed(std::uint64_t seed) override;  // also resets the offset to 0
  void set_offset(std::uint64_t offset) override;      // raises unless a multiple of 4
  std::uint64_t get_offset() const override;
  std::uint64_t current_seed() const override;
  std::uint64_t seed() override;  // a fresh non-deterministic seed
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // Generators share a state by these two, as on CUDA: what one draws, the other does not again.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  // exchange_state() draws from `state` henceforth and returns the state that it drew from.
  std::shared_ptr<PhiloxState> exchange_state(std::shared_ptr<PhiloxState> state);
  const std::shared_ptr<PhiloxState>& state() const noexcept { return state_; }

  // reserve() returns the state a call draws from and moves the offset on by `increment`, which is
  // rounded up to a multiple of 4. The caller holds mutex_.
  PhiloxState reserve(std::uint64_t increment);

 private:
  PhiloxGenerator* clone_impl() const override;

  std::shared_ptr<PhiloxState> state_;  // never null
};

// default_generator() validates device; -1 means the current device.
const at::Generator& default_generator(c10::DeviceIndex device);

// reserve_philox() is what a random operator on `device` calls: checks that `generator`, if given,
// is one of npusim (of any index, as on CUDA), locks it, and reserves `increment` offsets. A graph
// that is being captured on the device must have registered the generator.
PhiloxState reserve_philox(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
                           std::uint64_t increment = 4);

// cpu_generator_for() returns this thread's CPU generator, reseeded from a hash of the (seed,
// offset) reserved from `generator`: for the random operators that run CPU kernels.
at::Generator cpu_generator_for(const std::optional<at::Generator>& generator,
                                c10::DeviceIndex device);

}  // namespace torch_npusim
