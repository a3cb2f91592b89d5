// SPDX-License-Identifier: BSD-3-Clause
// The functional and in-place forms of structured operators, on the boxed kernel. Without this,
// core's own forms would make an empty result, then dispatch a second time to out=: the same bits
// for about the price of one more small operator.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "csrc/routes/fallback.h"

namespace torch_npusim {

namespace {

bool is_structured_form(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::CPU) &&
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         !op.hasKernelForDispatchKey(DispatchKey::PrivateUse1);
}

}  // namespace

void register_structured_forms() {
  // Never destroyed: the registrations last as long as the process.
  static auto* library = new torch::Library(torch::Library::IMPL, "aten",
                                            c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op.has_value() || !is_structured_form(*op)) continue;
    std::string overload = name.name.substr(std::string_view("aten::").size());
    if (!name.overload_name.empty()) overload += "." + name.overload_name;
    library->impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
  }
}

}  // namespace torch_npusim
