// SPDX-License-Identifier: BSD-3-Clause
// The boxed fallback: operands become host views, the CPU kernel runs, results become device
// tensors. Memory that the kernel allocates for its results is scratch memory of the device, so
// nothing is copied. Host-synchronous under every executor; modelled as one asynchronous command.
#include "csrc/launch/fallback.h"

#include <ATen/core/List.h>
#include <torch/library.h>

#include <algorithm>

#include "csrc/launch/boxed_operands.h"
#include "csrc/launch/cpu_call.h"
#include "csrc/launch/fallback_stats.h"
#include "csrc/launch/op_record.h"
#include "csrc/runtime/generator.h"

namespace torch_npusim {

namespace {

// The arguments of one boxed call; views take the places of the operands.
class BoxedArguments : public BoxedOperands {
 public:
  using BoxedOperands::BoxedOperands;

  void become_views(CpuCall& call, c10::DeviceIndex device) {
    for (const auto& [position, tensor] : tensors_) {
      stack_[first_ + position] = call.view(tensor, record_.written[position]);
    }
    for (const auto& [position, list] : lists_) {
      stack_[first_ + position] = views_of(call, list, record_.written[position]);
    }
    if (C10_UNLIKELY(device_.has_value())) stack_[first_ + *device_] = c10::Device(c10::kCPU);
    if (C10_UNLIKELY(record_.generator.has_value())) {
      c10::IValue& generator = stack_[first_ + *record_.generator];
      generator = cpu_generator_for(generator.toOptional<at::Generator>(), device);
    }
  }

 private:
  static c10::IValue views_of(CpuCall& call, const c10::IValue& list, bool written) {
    if (list.isTensorList()) {
      c10::List<at::Tensor> views;
      views.reserve(list.toListRef().size());
      for (const c10::IValue& item : list.toListRef()) {
        views.push_back(call.view(item.toTensor(), written));
      }
      return views;
    }
    c10::List<std::optional<at::Tensor>> views;
    for (const c10::IValue& item : list.toListRef()) {
      views.push_back(item.isTensor()
                          ? std::optional<at::Tensor>(call.view(item.toTensor(), written))
                          : std::nullopt);
    }
    return views;
  }
};

c10::IValue device_result(CpuCall& call, const OpRecord& record, c10::IValue value) {
  // Packed weights and the like would keep views of their operands, which end with the call.
  TORCH_CHECK_NOT_IMPLEMENTED(
      !value.isObject(), record.name,
      ": npusim has no packed weights or other objects of the CPU's libraries. Make them of CPU "
      "tensors, with .cpu().");
  if (value.isTensor()) return call.result(std::move(value).toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> results;
    for (const c10::IValue& item : value.toListRef()) {
      results.push_back(call.result(item.toTensor()));
    }
    return results;
  }
  return value;
}

// Operators of other vendors' libraries, among others. torch's own message
// would blame the CPU.
void check_cpu_kernel(const c10::OperatorHandle& op, const OpRecord& record) {
  if (C10_LIKELY(record.has_cpu_kernel)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU),
                              record.name,
                              " is not implemented for npusim: neither this backend "
                              "nor the CPU, whose kernels it runs, has a kernel for it.");
}

void run_on_views(const c10::OperatorHandle& op, torch::jit::Stack& stack, const OpRecord& record,
                  BoxedArguments& arguments, c10::DeviceIndex device) {
  const bool dense = arguments.operands.all_dense();
  if (dense) check_cpu_kernel(op, record);
  const KernelScope scope(device);
  CpuCall call(record.name.c_str(), device, arguments.operands.tensors().size(),
               record.writes ? CpuCall::Access::writes : CpuCall::Access::reads);
  arguments.become_views(call, device);
  if (dense) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  } else {
    call.mirror_requires_grad();
    op.callBoxed(stack);
  }
  call.finish();
  for (std::size_t i = stack.size() - record.return_count; i < stack.size(); ++i) {
    stack[i] = device_result(call, record, std::move(stack[i]));
  }
}

// What the kernel returned beside the arguments that it wrote to.
std::vector<at::Tensor> new_results(const torch::jit::Stack& stack, const OpRecord& record,
                                    TensorPointers operands) {
  std::vector<at::Tensor> made;
  const auto add = [&](const at::Tensor& tensor) {
    const auto is_tensor = [&](const at::TensorBase* operand) { return operand->is_same(tensor); };
    if (record.writes && std::any_of(operands.begin(), operands.end(), is_tensor)) return;
    made.push_back(tensor);
  };
  for (std::size_t i = stack.size() - record.return_count; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      add(stack[i].toTensor());
    } else if (stack[i].isTensorList()) {
      for (const at::Tensor& tensor : stack[i].toTensorVector()) add(tensor);
    }
  }
  return made;
}

void run_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack, const OpRecord& record) {
  BoxedArguments arguments(*stack, record);
  const c10::DeviceIndex device = arguments.operands.device(record);
  const Account account = arguments.operands.account(record);
  const npusim::CommandInfo info{record.name.c_str(), npusim::CommandKind::kernel, account.cost(),
                                 /*keeps_turn=*/!record.runs_python};
  const auto kernel = [&] {
    run_on_views(op, *stack, record, arguments, device);
    account.settle(new_results(*stack, record, arguments.operands.tensors()));
  };
  arguments.operands.waits(record) ? launch_and_wait(info, device, kernel)
                                   : launch(info, device, kernel);
}

}  // namespace

void cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  OpRecord& record = op_record(op);
  note_fallback(record.name.c_str(), record.calls);
  run_boxed(op, stack, record);
}

// Every operator without a kernel of its own, dense or sparse or quantized.
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
}

// CPU has its own kernel for these although a composite exists, with other bits. With those that
// have a typed kernel, tests/ops/test_fallback.py recomputes the list from the dispatcher.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"_stack.out", "addr", "addr.out", "all.dims", "all.dims_out", "any.dims",
                           "any.dims_out", "linalg__powsum", "native_channel_shuffle"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
  }
}

// torch's kernels for every backend, which read memory on the host all the same. The conformance
// kit's fuzz command finds them.
namespace {

void run_on_host(torch::Library& m) {
  for (const char* name : {"_grid_sampler_2d_cpu_fallback",
                           "_grid_sampler_2d_cpu_fallback_backward", "_nnpack_spatial_convolution",
                           "_saturate_weight_to_fp16", "choose_qparams_optimized", "range.out_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { run_on_host(m); }
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) { run_on_host(m); }
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) { run_on_host(m); }
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) { run_on_host(m); }

}  // namespace torch_npusim
