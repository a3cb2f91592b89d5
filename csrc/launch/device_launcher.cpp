// SPDX-License-Identifier: BSD-3-Clause
// Commands whose cost and operands their callers know: no tensor is made or looked at.
#include "csrc/launch/device_launcher.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/observer.h"
#include "csrc/errors.h"
#include "csrc/runtime/graph.h"
#include "csrc/runtime/known_values.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

static_assert(static_cast<int>(DevicePrecision::f32) == static_cast<int>(npusim::Precision::f32));
static_assert(static_cast<int>(DevicePrecision::f64) == static_cast<int>(npusim::Precision::f64));
static_assert(static_cast<int>(DevicePrecision::f16) == static_cast<int>(npusim::Precision::f16));
static_assert(static_cast<int>(DevicePrecision::i8) == static_cast<int>(npusim::Precision::i8));
static_assert(static_cast<int>(DevicePrecision::other) ==
              static_cast<int>(npusim::Precision::other));

void note(const DeviceOperand& operand) {
  if (operand.first == nullptr || !npusim::is_device_address(operand.first)) return;
  const auto dimensions = static_cast<std::size_t>(operand.dimensions);
  c10::SmallVector<std::int64_t, 8> strides;
  for (std::size_t i = 0; i < dimensions; ++i) {
    if (operand.sizes[i] == 0) return;
    strides.push_back(operand.strides[i] * operand.element_bytes);
  }
  const auto first = reinterpret_cast<npusim::Address>(operand.first);
  npusim::note_operand({first,
                        first,
                        operand.written,
                        static_cast<std::uint32_t>(operand.element_bytes),
                        operand.type,
                        {operand.sizes, dimensions},
                        {strides.data(), strides.size()}});
}

// Compiled code takes addresses as they are: null, or null and an offset, where storage.resize_(0)
// took the memory. Linux maps nothing below vm.mmap_min_addr.
constexpr std::uintptr_t kNeverMapped = 1 << 16;

void check_memory(const DeviceCommand& command) {
  if (C10_LIKELY(!detail::g_storages_differ.load(std::memory_order_relaxed))) return;
  for (std::int64_t i = 0; i < command.operand_count; ++i) {
    const DeviceOperand& operand = command.operands[i];
    const bool empty = std::count(operand.sizes, operand.sizes + operand.dimensions, 0) > 0;
    TORCH_CHECK(reinterpret_cast<std::uintptr_t>(operand.first) >= kNeverMapped || empty,
                command.name, ": operand ", i,
                " has no memory: storage.resize_(0) took it away. Resize the storage back before "
                "the tensor is used.");
  }
}

void submit_now(npusim::Stream& stream, const DeviceCommand& command, void (*run)(const void*),
                const void* body) {
  const npusim::CommandInfo info{
      command.name,
      npusim::CommandKind::kernel,
      {command.flops, command.bytes, static_cast<npusim::Precision>(command.precision)}};
  check_memory(command);
  npusim::submit(stream, info, [&] {
    if (C10_UNLIKELY(npusim::observed())) {
      for (std::int64_t i = 0; i < command.operand_count; ++i) note(command.operands[i]);
    }
    run(body);
  });
}

[[noreturn]] void refuse_capture(const char* name, const char* why) {
  const std::string refused = std::string(name) + " was launched in a capture: " + why;
  npusim::invalidate_capture(refused);
  C10_THROW_ERROR(NotImplementedError, refused);
}

// A command with its operands and its body, of which its caller keeps nothing.
class KeptCommand {
 public:
  KeptCommand(const DeviceCommand& command, void (*run)(const void*), const void* body,
              std::size_t body_bytes)
      : command_(command),
        operands_(command.operands, command.operands + command.operand_count),
        run_(run),
        body_(static_cast<const char*>(body), static_cast<const char*>(body) + body_bytes) {
    for (DeviceOperand& operand : operands_) {
      const auto dimensions = static_cast<std::size_t>(operand.dimensions);
      operand.sizes = keep(operand.sizes, dimensions);
      operand.strides = keep(operand.strides, dimensions);
    }
    command_.operands = operands_.data();
  }
  KeptCommand(const KeptCommand&) = delete;
  KeptCommand& operator=(const KeptCommand&) = delete;

  void submit(npusim::Stream& stream) const {
    translated([&] { submit_now(stream, command_, run_, body_.data()); });
  }

 private:
  const std::int64_t* keep(const std::int64_t* values, std::size_t count) {
    return numbers_.emplace_back(values, values + count).data();
  }

  DeviceCommand command_;
  std::vector<DeviceOperand> operands_;
  std::deque<std::vector<std::int64_t>> numbers_;
  void (*run_)(const void*);
  std::vector<char> body_;  // operator new aligns it as any body is
};

Graph::Kernel::Range range_of(const DeviceOperand& operand) {
  std::int64_t low = 0, high = 0;
  for (std::int64_t i = 0; i < operand.dimensions; ++i) {
    if (operand.sizes[i] == 0) return {0, 0};
    const std::int64_t reach = (operand.sizes[i] - 1) * operand.strides[i];
    (reach < 0 ? low : high) += reach;
  }
  const auto first = reinterpret_cast<npusim::Address>(operand.first);
  return {first + static_cast<npusim::Address>(low * operand.element_bytes),
          static_cast<std::size_t>((high - low + 1) * operand.element_bytes)};
}

void capture(npusim::Stream& stream, const DeviceCommand& command, void (*run)(const void*),
             const void* body, std::size_t body_bytes) {
  if (command.operand_count == 0) {
    refuse_capture(command.name,
                   "it does not declare the memory that it writes, so a graph cannot hold it");
  }
  Graph::Kernel kernel;
  kernel.name = command.name;
  for (std::int64_t i = 0; i < command.operand_count; ++i) {
    const DeviceOperand& operand = command.operands[i];
    if (operand.first != nullptr && !npusim::is_device_address(operand.first)) {
      refuse_capture(command.name,
                     "it uses host memory, which may be gone when the graph is replayed");
    }
    if (operand.written) kernel.writes.push_back(range_of(operand));
  }
  kernel.submit = [kept = std::make_shared<KeptCommand>(command, run, body, body_bytes)](
                      npusim::Stream& on) { kept->submit(on); };
  Graph::capturing()->call(stream, std::move(kernel));
}

void launch_erased(const DeviceLauncher& launcher, const DeviceCommand& command,
                   void (*run)(const void*), const void* body, std::size_t body_bytes) {
  if (C10_UNLIKELY(npusim::dry())) forget_values();
  translated([&] {
    npusim::Stream& stream = npusim::current_stream(static_cast<int>(launcher.device));
    if (C10_UNLIKELY(npusim::detail::takes_slow_path(npusim::detail::kCapturing)) &&
        npusim::detail::t_state.launching == npusim::detail::Launching::directly &&
        Graph::captures(stream)) {
      capture(stream, command, run, body, body_bytes);
      return;
    }
    submit_now(stream, command, run, body);
  });
}

}  // namespace

const DeviceLauncher& device_launcher(int device) {
  translated([&] {
    npusim::initialize();
    npusim::check_device(device);
  });
  static const auto* const launchers = [] {
    auto* made = new std::vector<DeviceLauncher>;
    const std::int64_t delta = npusim::g_address_map.kernel_delta.load();
    for (int i = 0; i < npusim::device_count(); ++i) {
      made->push_back({DeviceLauncher::kVersion, i, delta, &launch_erased});
    }
    return made;
  }();
  return (*launchers)[static_cast<std::size_t>(device)];
}

}  // namespace torch_npusim
