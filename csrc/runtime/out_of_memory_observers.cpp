// SPDX-License-Identifier: BSD-3-Clause
// The observers live as long as the process.
#include "csrc/runtime/out_of_memory_observers.h"

#include <mutex>
#include <utility>
#include <vector>

namespace torch_npusim {

namespace {
struct Observers {
  std::mutex mutex;
  std::vector<OutOfMemoryObserver> all;
  OutOfMemoryAdviser adviser;
};
Observers& observers() {
  static auto* const kObservers = new Observers;  // never destroyed: they hold Python's objects
  return *kObservers;
}
}  // namespace

void attach_out_of_memory_observer(OutOfMemoryObserver observer) {
  const std::lock_guard lock(observers().mutex);
  observers().all.push_back(std::move(observer));
}

void tell_out_of_memory_observers(const npusim::alloc::OutOfMemoryReport& report,
                                  c10::DeviceIndex device) {
  std::vector<OutOfMemoryObserver> told;
  {
    const std::lock_guard lock(observers().mutex);
    told = observers().all;
  }
  for (const OutOfMemoryObserver& observer : told) observer(report, device);
}

void set_out_of_memory_adviser(OutOfMemoryAdviser adviser) {
  const std::lock_guard lock(observers().mutex);
  observers().adviser = std::move(adviser);
}

std::string out_of_memory_advice(const npusim::alloc::OutOfMemoryReport& report,
                                 c10::DeviceIndex device) {
  OutOfMemoryAdviser adviser;
  {
    const std::lock_guard lock(observers().mutex);
    adviser = observers().adviser;
  }
  return adviser ? adviser(report, device) : "";
}

}  // namespace torch_npusim
