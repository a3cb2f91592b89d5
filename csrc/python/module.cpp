// SPDX-License-Identifier: BSD-3-Clause
// torch_npusim._C: joins the simulator to torch when it is imported.
#include <torch/csrc/Exceptions.h>

#include "csrc/errors.h"
#include "csrc/operands/alignment.h"
#include "csrc/python/bindings.h"
#include "csrc/routes/fallback.h"
#include "csrc/routes/fallback_stats.h"
#include "csrc/runtime/init.h"
#include "csrc/runtime/poison.h"

namespace {

// The knobs that csrc/ owns at run time start from the environment.
void apply_knobs() {
  const npusim::Config& config =
      torch_npusim::translated([]() -> const npusim::Config& { return npusim::config(); });
  torch_npusim::set_strict_align(config.strict_align);
  torch_npusim::set_fallback_mode(config.fallback);
  torch_npusim::set_poison_mode(config.poison);
}

// torch's errors keep their Python types; pybind11's own are left to pybind11.
void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

// Some of torch's bindings call operators without letting go of the GIL (storages, x[0] = 1). They
// must not keep it while they wait for a body that may want it.
void wait_without_gil(void (*wait)(void*), void* argument) {
  std::optional<pybind11::gil_scoped_release> without;
  const bool known = Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() != nullptr;
  if (known && PyGILState_Check() != 0) without.emplace();
  wait(argument);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ side of torch_npusim.";
  pybind11::register_local_exception_translator(&translate);
  try {
    apply_knobs();
  } catch (const c10::Error& error) {
    throw pybind11::import_error(error.what_without_backtrace());
  }
  npusim::set_wait_hook(&wait_without_gil);
  torch_npusim::register_backend();
  torch_npusim::register_structured_forms();
  torch_npusim::bind_call_log(m);
  torch_npusim::bind_commands(m);
  torch_npusim::bind_compiled(m);
  torch_npusim::bind_cuda_names(m);
  torch_npusim::bind_device(m);
  torch_npusim::bind_dry_runs(m);
  torch_npusim::bind_distributed(m);
  torch_npusim::bind_event_log(m);
  torch_npusim::bind_graphs(m);
  torch_npusim::bind_memory(m);
  torch_npusim::bind_races(m);
  torch_npusim::bind_random(m);
  torch_npusim::bind_sharing(m);
  torch_npusim::bind_sim(m);
  torch_npusim::bind_timeline(m);
}
