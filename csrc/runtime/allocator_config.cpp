// SPDX-License-Identifier: BSD-3-Clause
// Allocator settings from the environment.
#include "csrc/runtime/allocator_config.h"

#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <string>

#include "backend/backend.h"

namespace torch_npusim {

namespace {

npusim::alloc::Config parse_setting(const std::string& setting) {
  const std::size_t comma = setting.find(',');
  const npusim::alloc::Config base = npusim::alloc::preset(setting.substr(0, comma));
  if (comma == std::string::npos) return base;
  return npusim::alloc::parse_config(base, setting.substr(comma + 1));
}

template <class Parse>
npusim::alloc::Config naming(const char* variable, const Parse& parse) {
  try {
    return parse();
  } catch (const npusim::alloc::InvalidArgument& error) {
    TORCH_CHECK_VALUE(false, variable, ": ", error.what());
  }
}

}  // namespace

npusim::alloc::Config configured_allocator() {
  npusim::alloc::Config config =
      naming("NPUSIM_ALLOCATOR", [] { return parse_setting(npusim::config().allocator); });
  const std::optional<std::string> text = c10::utils::get_env("PYTORCH_ALLOC_CONF");
  if (!text.has_value() || text->empty()) return config;
  return naming("PYTORCH_ALLOC_CONF", [&] { return npusim::alloc::parse_config(config, *text); });
}

}  // namespace torch_npusim
