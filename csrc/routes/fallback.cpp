// SPDX-License-Identifier: BSD-3-Clause
// The boxed fallback: operands become host views, the CPU kernel runs, results become device
// tensors. Memory that the kernel allocates for its results is scratch memory of the device, so
// nothing is copied. Host-synchronous under every executor; modelled as one asynchronous command.
#include "csrc/routes/fallback.h"

#include <ATen/core/List.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "csrc/cuda_rules/operators_without_cuda.h"
#include "csrc/launch/boxed_operands.h"
#include "csrc/launch/op_traits.h"
#include "csrc/observers/route_taken.h"
#include "csrc/routes/cpu_call.h"
#include "csrc/routes/cuda_temporaries.h"
#include "csrc/routes/dry_rules.h"
#include "csrc/routes/fallback_stats.h"
#include "csrc/runtime/cublas_workspaces.h"
#include "csrc/runtime/cuda_names.h"
#include "csrc/runtime/generator.h"

namespace torch_npusim {

namespace {

// The arguments of one boxed call; views take the places of the operands.
class BoxedArguments : public BoxedOperands {
 public:
  using BoxedOperands::BoxedOperands;

  void become_views(CpuCall& call, c10::DeviceIndex device) {
    const auto show = [&](const auto& placed) {
      stack_[first_ + placed.first] = call.view(placed.second, traits_.written[placed.first]);
    };
    if (C10_UNLIKELY(npusim::dry())) {  // the call finishes backwards, so results come in order
      std::for_each(tensors_.rbegin(), tensors_.rend(), show);
    } else {
      std::for_each(tensors_.begin(), tensors_.end(), show);
    }
    for (const auto& [position, list] : lists_) {
      stack_[first_ + position] = views_of(call, list, traits_.written[position]);
    }
    if (C10_UNLIKELY(device_.has_value())) {
      stack_[first_ + *device_] = c10::Device(c10::dispatchKeyToDeviceType(call.kernel()));
    }
    if (C10_UNLIKELY(traits_.generator.has_value())) {
      c10::IValue& generator = stack_[first_ + *traits_.generator];
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

c10::IValue device_result(CpuCall& call, const OpTraits& traits, c10::IValue value) {
  // Packed weights and the like would keep views of their operands, which end with the call.
  TORCH_CHECK_NOT_IMPLEMENTED(
      !value.isObject(), traits.name,
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
void check_cpu_kernel(const c10::OperatorHandle& op, const OpTraits& traits) {
  if (C10_LIKELY(traits.has_cpu_kernel)) return;
  const std::string cuda =
      is_cpu_only_in_force()
          ? "Could not run '" + traits.name + "' with arguments from the 'CUDA' backend.\n"
          : "";
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), cuda,
                              traits.name,
                              " is not implemented for npusim: neither this backend "
                              "nor the CPU, whose kernels it runs, has a kernel for it.");
}

void run_dry(const c10::OperatorHandle& op, torch::jit::Stack& stack, const OpTraits& traits,
             const CpuCall& call, const BoxedArguments& arguments) {
  if (serve_by_rule(traits, arguments.operands.tensors(), stack)) return;
  if (traits.only_in_place && traits.return_count == 0 &&
      !op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
    torch::jit::drop(stack, traits.written.size());  // it returns nothing, and computes nothing
    return;
  }
  const c10::DispatchKeySet kernel = kernel_for(call, traits);
  try {
    op.redispatchBoxed(kernel, &stack);
  } catch (const c10::NotImplementedError&) {
    refuse_shape(traits);
  }
}

void run_on_views(const c10::OperatorHandle& op, torch::jit::Stack& stack, const OpTraits& traits,
                  BoxedArguments& arguments, c10::DeviceIndex device) {
  const bool dense = arguments.operands.all_dense();
  if (dense) check_cpu_kernel(op, traits);
  note_route(Route::fallback);
  const NoWrappers no_wrappers;
  CpuCall call(traits.name.c_str(), device, arguments.operands.tensors().size(),
               C10_UNLIKELY(traits.reads_behind) ? CpuCall::Access::reads_behind
               : traits.writes                   ? CpuCall::Access::writes
                                                 : CpuCall::Access::reads);
  call.tell_apart(arguments.operands.flags());
  arguments.become_views(call, device);
  if (C10_UNLIKELY(npusim::dry())) {
    run_dry(op, stack, traits, call, arguments);
  } else if (dense) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  } else {
    call.mirror_requires_grad();
    op.callBoxed(stack);
  }
  call.finish();
  const std::size_t first = stack.size() - traits.return_count;
  const auto order = as_cuda() ? order_of_results(traits.name) : c10::ArrayRef<std::size_t>();
  for (std::size_t place = 0; place < traits.return_count; ++place) {
    const std::size_t i = first + (order.empty() ? place : order[place]);
    stack[i] = device_result(call, traits, std::move(stack[i]));
    if (C10_UNLIKELY(npusim::dry()) && stack[i].isTensor()) {
      lay_out(traits, arguments.operands.tensors(), i - first, stack[i].toTensor());
    }
  }
}

// Products that csrc/aten/products.cpp does not serve.
bool multiplies(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "aten::mm.out",           "aten::bmm.out", "aten::addmm.out",  "aten::baddbmm.out",
      "aten::baddbmm_",         "aten::addbmm_", "aten::addbmm.out", "aten::addmv_",
      "aten::_scaled_mm",       "aten::mv.out",  "aten::dot.out",    "aten::vdot.out",
      "aten::_addmm_activation"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// What the kernel returned beside the arguments that it wrote to.
std::vector<at::Tensor> new_results(const torch::jit::Stack& stack, const OpTraits& traits,
                                    TensorPointers operands) {
  std::vector<at::Tensor> made;
  const auto add = [&](const at::Tensor& tensor) {
    const auto is_tensor = [&](const at::TensorBase* operand) { return operand->is_same(tensor); };
    if (traits.writes && std::any_of(operands.begin(), operands.end(), is_tensor)) return;
    made.push_back(tensor);
  };
  for (std::size_t i = stack.size() - traits.return_count; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      add(stack[i].toTensor());
    } else if (stack[i].isTensorList()) {
      for (const at::Tensor& tensor : stack[i].toTensorVector()) add(tensor);
    }
  }
  return made;
}

// What rows of temporaries ask of the arguments that are no tensors.
CallArguments numbers_of(const torch::jit::Stack& stack, const OpTraits& traits) {
  CallArguments given;
  for (std::size_t i = stack.size() - traits.written.size(); i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isBool()) given.add(value.toBool());
    if (value.isInt()) given.add(value.toInt());
    if (value.isIntList()) given.add(at::IntArrayRef(value.toIntVector()));
    if (value.isString()) given.add(std::string_view(value.toStringRef()));
  }
  return given;
}

void run_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack, const OpTraits& traits) {
  BoxedArguments arguments(*stack, traits);
  const c10::DeviceIndex device = arguments.operands.device(traits);
  const Account account = arguments.operands.account(traits);
  const npusim::CommandInfo info{traits.name.c_str(), npusim::CommandKind::kernel, account.cost(),
                                 /*keeps_turn=*/!traits.runs_python};
  const bool keeps = is_called_cuda() && multiplies(traits.name);
  CallArguments given = as_cuda() ? numbers_of(*stack, traits) : CallArguments();
  const auto keep = [&] {
    const bool is_out = traits.name.ends_with(".out");
    const TensorPointers all = arguments.operands.tensors();
    keep_workspaces_of_product(all.slice(0, all.size() - (is_out ? 1 : 0)), device);
  };
  const bool writes = op.schema().is_mutable();  // and must not if there is no memory
  const auto kernel = [&] {
    if (keeps && writes) keep();
    std::optional<CudaTemporaries> temporaries;
    if (as_cuda()) {
      temporaries.emplace(traits.name, arguments.operands.tensors(), std::move(given), device);
    }
    run_on_views(op, *stack, traits, arguments, device);
    if (temporaries.has_value()) temporaries->after_results();
    if (keeps && !writes) keep();
    account.settle(new_results(*stack, traits, arguments.operands.tensors()));
  };
  arguments.operands.waits(traits) ? launch_and_wait(info, device, kernel)
                                   : launch(info, device, kernel);
}

}  // namespace

void cpu_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  OpTraits& traits = op_traits(op);
  if (serve_as_cuda(op, traits.name, keys, stack)) return;
  count_fallback(traits.name.c_str(), traits.calls);
  run_boxed(op, stack, traits);
}

void serve_by_fallback(torch::Library& m, c10::ArrayRef<const char*> names) {
  for (const char* name : names) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
  }
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
  serve_by_fallback(m, {"_stack.out", "addr", "addr.out", "all.dims", "all.dims_out", "any.dims",
                        "any.dims_out", "linalg__powsum", "native_channel_shuffle"});
}

// torch's kernels for every backend, which read memory on the host all the same. The conformance
// kit's fuzz command finds them.
namespace {

void run_on_host(torch::Library& m) {
  serve_by_fallback(m, {"_grid_sampler_2d_cpu_fallback", "_grid_sampler_2d_cpu_fallback_backward",
                        "_nnpack_spatial_convolution", "_saturate_weight_to_fp16",
                        "choose_qparams_optimized", "range.out_"});
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { run_on_host(m); }
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) { run_on_host(m); }
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) { run_on_host(m); }
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) { run_on_host(m); }

}  // namespace torch_npusim
