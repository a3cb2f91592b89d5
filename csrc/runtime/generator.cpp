// SPDX-License-Identifier: BSD-3-Clause
// Philox generators, one per device and as many as users make.
#include "csrc/runtime/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>

#include <cstring>
#include <vector>

#include "backend/backend.h"
#include "csrc/errors.h"
#include "csrc/runtime/device.h"
#include "csrc/runtime/graph.h"

namespace torch_npusim {

namespace {

constexpr std::size_t kStateBytes = 2 * sizeof(std::uint64_t);

std::uint64_t mix64(std::uint64_t x) {  // the finaliser of splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A replay draws from where the generator is then, so a capture cannot ask or say where that is.
void refuse_in_capture(const char* what) {
  TORCH_CHECK(!Graph::captures_current_stream(), "Cannot call CUDAGeneratorImpl::", what,
              " during CUDA graph capture.\nCall it before the capture begins, or after it has "
              "ended. (torch.utils.checkpoint calls it unless preserve_rng_state=False.)");
}

}  // namespace

PhiloxGenerator::PhiloxGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(c10::kPrivateUse1, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(std::make_shared<PhiloxState>(PhiloxState{c10::default_rng_seed_val, 0})) {}

void PhiloxGenerator::set_current_seed(std::uint64_t seed) {
  if (Graph::captures_current_stream()) {
    TORCH_CHECK(state_->seed == seed,
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if "
                "new seed is the same as the original seed.\nSeed before the capture begins, or "
                "after it has ended.");
    return;
  }
  *state_ = {seed, 0};
}

void PhiloxGenerator::set_offset(std::uint64_t offset) {
  refuse_in_capture("set_offset");
  TORCH_CHECK(offset % 4 == 0, "The offset of an npusim generator must be a multiple of 4, got ",
              offset);
  state_->offset = offset;
}

std::uint64_t PhiloxGenerator::get_offset() const {
  refuse_in_capture("get_offset");
  return state_->offset;
}
std::uint64_t PhiloxGenerator::current_seed() const {
  refuse_in_capture("current_seed");
  return state_->seed;
}

std::uint64_t PhiloxGenerator::seed() {
  refuse_in_capture("seed");
  const std::uint64_t fresh = c10::detail::getNonDeterministicRandom();
  set_current_seed(fresh);
  return fresh;
}

void PhiloxGenerator::set_state(const c10::TensorImpl& new_state) {
  refuse_in_capture("set_state");
  TORCH_CHECK_TYPE(new_state.layout() == at::kStrided && new_state.device().is_cpu() &&
                       new_state.dtype() == caffe2::TypeMeta::Make<std::uint8_t>() &&
                       new_state.is_contiguous(),
                   "RNG state must be a contiguous torch.ByteTensor on the CPU");
  TORCH_CHECK(static_cast<std::size_t>(new_state.numel()) == kStateBytes,
              "RNG state is wrong size\nThe state of an npusim generator has ", kStateBytes,
              " bytes (u64 seed, i64 offset), got ", new_state.numel());
  std::uint64_t words[2];
  std::memcpy(words, new_state.data(), kStateBytes);
  set_offset(words[1]);
  state_->seed = words[0];
}

c10::intrusive_ptr<c10::TensorImpl> PhiloxGenerator::get_state() const {
  refuse_in_capture("get_state");
  at::TensorBase state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, at::kByte);
  const std::uint64_t words[2] = {state_->seed, state_->offset};
  std::memcpy(state.mutable_data_ptr(), words, kStateBytes);
  return state.getIntrusivePtr();
}

void PhiloxGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) {
  auto* other = dynamic_cast<PhiloxGenerator*>(new_state.get());
  TORCH_CHECK(other != nullptr, "graphsafe_set_state expects a generator of an npusim device");
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> PhiloxGenerator::graphsafe_get_state() const {
  auto other = c10::make_intrusive<PhiloxGenerator>(device().index());
  other->state_ = state_;
  return other;
}

std::shared_ptr<PhiloxState> PhiloxGenerator::exchange_state(std::shared_ptr<PhiloxState> state) {
  std::swap(state, state_);
  return state;
}

PhiloxState PhiloxGenerator::reserve(std::uint64_t increment) {
  const PhiloxState reserved = *state_;
  state_->offset += (increment + 3) / 4 * 4;
  return reserved;
}

PhiloxGenerator* PhiloxGenerator::clone_impl() const {
  auto* copy = new PhiloxGenerator(device().index());  // owned by the caller's intrusive_ptr
  *copy->state_ = *state_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* generators = [] {  // never destroyed: tensors may draw during shutdown
    auto* made = new std::vector<at::Generator>;
    for (int i = 0; i < npusim::device_count(); ++i) {
      made->push_back(at::make_generator<PhiloxGenerator>(static_cast<c10::DeviceIndex>(i)));
    }
    return made;
  }();
  // The index only: seeding must not initialise the devices, or later forks would be bad.
  const int index = device == -1 ? npusim::current_device() : device;
  translated([&] { npusim::check_device(index); });
  return (*generators)[static_cast<std::size_t>(index)];
}

PhiloxState reserve_philox(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
                           std::uint64_t increment) {
  auto* philox =
      at::get_generator_or_default<PhiloxGenerator>(generator, default_generator(device));
  const std::lock_guard<std::mutex> lock(philox->mutex_);
  if (Graph* graph = Graph::capturing()) graph->keep_draw(*philox, device);
  return philox->reserve(increment);
}

at::Generator cpu_generator_for(const std::optional<at::Generator>& generator,
                                c10::DeviceIndex device) {
  const PhiloxState state = reserve_philox(generator, device);
  thread_local at::Generator host = at::make_generator<at::CPUGeneratorImpl>();
  host.set_current_seed(mix64(state.seed ^ mix64(state.offset)));
  return host;
}

}  // namespace torch_npusim
