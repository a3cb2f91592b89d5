// SPDX-License-Identifier: BSD-3-Clause
// torch_npusim._C: joins the simulator to torch when it is imported.
#include <torch/csrc/Exceptions.h>

#include "csrc/aten/alignment.h"
#include "csrc/aten/fallback_stats.h"
#include "csrc/errors.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/init.h"
#include "csrc/runtime/poison.h"

namespace {

// The knobs that csrc/ owns at run time start from the environment.
void apply_knobs() {
  const npusim::Config& config =
      torch_npusim::translated([]() -> const npusim::Config& { return npusim::config(); });
  torch_npusim::set_strict_align(config.strict_align);
  torch_npusim::set_fallback_policy(config.fallback);
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

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ side of torch_npusim.";
  pybind11::register_local_exception_translator(&translate);
  try {
    apply_knobs();
  } catch (const c10::Error& error) {
    throw pybind11::import_error(error.what_without_backtrace());
  }
  torch_npusim::register_backend();
  torch_npusim::bind_cuda_names(m);
  torch_npusim::bind_device(m);
  torch_npusim::bind_memory(m);
  torch_npusim::bind_random(m);
  torch_npusim::bind_sim(m);
}
