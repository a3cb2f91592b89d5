// SPDX-License-Identifier: BSD-3-Clause
// What the fallback asks before it runs a CPU kernel, and the way to kernels for CUDA.
#include "csrc/cuda_rules/operators_without_cuda.h"

#include <c10/util/Exception.h>
#include <fnmatch.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <mutex>
#include <set>

#include "backend/backend.h"

namespace torch_npusim {

namespace {

using c10::DispatchKey;
using torch::jit::Stack;

struct CpuOnlyRule {
  std::atomic<bool> in_force{false};
  std::set<CpuOnly> of_torch;
  std::vector<std::string> allowed;
};

CpuOnlyRule& cpu_only_rule() {
  static auto* const kRule = new CpuOnlyRule;  // never destroyed: kernels may run during shutdown
  return *kRule;
}

// A key of this device, and CUDA's of the same kind.
using Keys = std::pair<DispatchKey, DispatchKey>;
constexpr std::array<Keys, 5> kKinds = {
    Keys{DispatchKey::PrivateUse1, DispatchKey::CUDA},
    Keys{DispatchKey::SparsePrivateUse1, DispatchKey::SparseCUDA},
    Keys{DispatchKey::SparseCsrPrivateUse1, DispatchKey::SparseCsrCUDA},
    Keys{DispatchKey::QuantizedPrivateUse1, DispatchKey::QuantizedCUDA},
    Keys{DispatchKey::NestedTensorPrivateUse1, DispatchKey::NestedTensorCUDA}};
constexpr std::array<Keys, 3> kAdopted = {
    kKinds[0], Keys{DispatchKey::AutogradPrivateUse1, DispatchKey::AutogradCUDA},
    Keys{DispatchKey::AutocastPrivateUse1, DispatchKey::AutocastCUDA}};

DispatchKey cuda_key(DispatchKey own) {
  for (const auto& [ours, cuda] : kKinds) {
    if (ours == own) return cuda;
  }
  return DispatchKey::CUDA;
}

bool is_of_torch(const std::string& name) { return name.rfind("aten::", 0) == 0; }

bool is_allowed(const std::string& name) {
  for (const std::string& pattern : cpu_only_rule().allowed) {
    if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
  }
  return false;
}

// cuDNN's quantized kernels take signed activations, and weights that they packed themselves. A
// model that was quantized for the CPU has others.
bool is_packed_for_cpu(const c10::OperatorHandle& op, const Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t first = stack.size() - schema.arguments().size();
  bool packed = false;
  bool is_unsigned = false;
  for (std::size_t i = first; i < stack.size(); ++i) {
    packed |= stack[i].isCustomClass();
    is_unsigned |= stack[i].isTensor() && stack[i].toTensor().defined() &&
                   stack[i].toTensor().scalar_type() == at::kQUInt8;
  }
  return packed && is_unsigned;
}

[[noreturn]] void refuse_cpu_only(const c10::OperatorHandle& op, const std::string& name,
                                  DispatchKey cuda) {
  std::string kernels;
  for (const DispatchKey key : {DispatchKey::CPU, DispatchKey::SparseCPU, DispatchKey::SparseCsrCPU,
                                DispatchKey::QuantizedCPU, DispatchKey::Meta}) {
    if (!op.hasKernelForDispatchKey(key)) continue;
    if (!kernels.empty()) kernels += ", ";
    kernels += c10::toString(key);
  }
  // A structured operator is its out= form where tensors are of a kind that it has no kernel for.
  std::string said = name;
  if (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional)) {
    const c10::OperatorName& own = op.operator_name();
    const std::string base =
        own.name.back() == '_' ? own.name.substr(0, own.name.size() - 1) : own.name;
    for (const std::string& overload :
         {own.overload_name.empty() ? "out" : own.overload_name + "_out", std::string("values")}) {
      if (c10::Dispatcher::singleton().findSchema({base, overload}).has_value()) {
        said = base + "." + overload;
        break;
      }
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "Could not run '", said, "' with arguments from the '", c10::toString(cuda),
      "' backend. '", name, "' is only available for these backends: [", kernels,
      "].\nOn CUDA this call has no kernel: move the operands with .cpu(), or register one for "
      "\"cuda\". torch_npusim.sim.rules.allow_cpu_kernels(\"",
      name.substr(0, name.find('.')),
      "\") or the ini option npusim_cpu_kernels_allow lets the CPU's kernel run. "
      "(NPUSIM_RULES=cuda)");
}

// In front of a composite, or of core's autograd: the kernel that CUDA would run.
class CudaKernel final : public c10::OperatorKernel {
 public:
  explicit CudaKernel(DispatchKey cuda) : cuda_(cuda) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (!op.hasComputedKernelForDispatchKey(cuda_)) {
      refuse_cpu_only(op, c10::toString(op.operator_name()), cuda_);
    }
    op.getComputedKernelForDispatchKey(cuda_).callBoxed(op, keys, stack);
  }

 private:
  DispatchKey cuda_;
};

void adopt(const c10::OperatorHandle& op) {
  static auto* const kRegistered = new std::vector<torch::Library>;
  static auto* const kMutex = new std::mutex;  // guards the vector
  const std::string full = c10::toString(op.operator_name());
  const std::size_t colons = full.find("::");
  for (const auto& [own, cuda] : kAdopted) {
    if (!op.hasKernelForDispatchKey(cuda) || op.hasKernelForDispatchKey(own)) continue;
    const std::lock_guard<std::mutex> lock(*kMutex);
    torch::Library& library = kRegistered->emplace_back(
        torch::Library::IMPL, full.substr(0, colons), own, __FILE__, __LINE__);
    library.impl(full.c_str() + colons + 2,
                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CudaKernel>(cuda)));
  }
}

}  // namespace

void set_cpu_only(bool in_force, const std::vector<CpuOnly>& of_torch) {
  cpu_only_rule().of_torch = {of_torch.begin(), of_torch.end()};
  cpu_only_rule().in_force.store(in_force, std::memory_order_release);
}

bool is_cpu_only_in_force() noexcept {
  return cpu_only_rule().in_force.load(std::memory_order_acquire);
}

void set_cpu_kernels(std::vector<std::string> patterns) {
  cpu_only_rule().allowed = std::move(patterns);
}

bool serve_as_cuda(const c10::OperatorHandle& op, const std::string& name, c10::DispatchKeySet keys,
                   Stack* stack) {
  if (C10_LIKELY(!cpu_only_rule().in_force.load(std::memory_order_acquire))) return false;
  const DispatchKey cuda = cuda_key(keys.highestPriorityTypeId());
  if (is_of_torch(name)) {
    const std::string kind = c10::toString(cuda);
    if (cpu_only_rule().of_torch.count({name, kind.substr(0, kind.size() - 4)}) == 0) return false;
  } else if (op.hasKernelForDispatchKey(cuda)) {
    op.getComputedKernelForDispatchKey(cuda).callBoxed(op, keys, stack);
    return true;
  }
  if (npusim::in_command_body() || (is_allowed(name) && !is_packed_for_cpu(op, *stack))) {
    return false;
  }
  refuse_cpu_only(op, name, cuda);
}

void adopt_cuda_kernels(const std::string& name) {
  for (const c10::OperatorName& each : c10::Dispatcher::singleton().getAllOpNames()) {
    if (is_of_torch(each.name) || (!name.empty() && each.name != name)) continue;
    const auto op = c10::Dispatcher::singleton().findOp(each);
    if (op.has_value()) adopt(*op);
  }
}

}  // namespace torch_npusim
