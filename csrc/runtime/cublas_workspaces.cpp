// SPDX-License-Identifier: BSD-3-Clause
// Sizes and keys are those of torch 2.13: ATen/cuda/CUDAContextLight.h and CublasHandlePool.cpp.
#include "csrc/runtime/cublas_workspaces.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_set>

#include "csrc/cuda_rules/judged_capability.h"
#include "csrc/runtime/cuda_names.h"
#include "csrc/runtime/device_allocator.h"

namespace torch_npusim {

namespace {

using Key =
    std::tuple<c10::DeviceIndex, int, decltype(npusim::current_stream(0).id()), CudaLibrary>;
using Workspaces = std::map<Key, LibraryMemory>;

std::mutex g_held_mutex;  // of all below
std::unordered_set<const void*>& addresses() {
  static auto* made = new std::unordered_set<const void*>;  // never destroyed: used at exit
  return *made;
}
Workspaces& workspaces() {
  static auto* made = new std::array<Workspaces, 2>;
  return (*made)[npusim::dry() ? 1 : 0];
}
std::vector<int>& free_handles() {
  static auto* made = new std::vector<int>;
  return *made;
}

class Handle {
 public:
  Handle() {
    const std::lock_guard<std::mutex> lock(g_held_mutex);
    static int made = 0;
    if (free_handles().empty()) {
      number = made++;
    } else {
      number = free_handles().back();
      free_handles().pop_back();
    }
  }
  ~Handle() {
    const std::lock_guard<std::mutex> lock(g_held_mutex);
    free_handles().push_back(number);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  int number;
};

constexpr std::int64_t kNotChosen = -1;
std::atomic<std::int64_t> g_chosen_bytes{kNotChosen};
constexpr std::size_t kLtWorkspace = std::size_t{1024} * 1024;
// "Slightly over 2MB", says cudnn/RNN.cpp: get_dropout_state(). How much is not public.
constexpr std::size_t kDropoutState = std::size_t{2048} * 1024 + 512;

int major_of(c10::DeviceIndex device) {
  const int judged = is_called_cuda() ? judged_capability() / 10 : 0;
  return judged != 0 && !npusim::dry() ? judged : npusim::device_spec(device).capability_major;
}

}  // namespace

LibraryMemory::LibraryMemory(std::size_t bytes, c10::DeviceIndex device)
    : held_(allocate_on_device(bytes, device)) {
  if (held_.get() == nullptr) return;
  const std::lock_guard<std::mutex> lock(g_held_mutex);
  addresses().insert(held_.get());
}

LibraryMemory::~LibraryMemory() {
  if (held_.get_context() == nullptr) return;  // moved away, or of no bytes
  {
    const std::lock_guard<std::mutex> lock(g_held_mutex);
    addresses().erase(held_.get());
  }
  held_.clear();
}

bool is_library_memory(const void* address) {
  const std::lock_guard<std::mutex> lock(g_held_mutex);
  return addresses().count(address) != 0;
}

// CUBLAS_WORKSPACE_CONFIG is a list of ":KiB:count".
std::size_t cublas_workspace_bytes(c10::DeviceIndex device) {
  if (const std::int64_t chosen = g_chosen_bytes.load(); chosen != kNotChosen) {
    return static_cast<std::size_t>(chosen);
  }
  if (const char* config = std::getenv("CUBLAS_WORKSPACE_CONFIG")) {
    std::size_t total = 0;
    for (const char* at = config; *at == ':';) {
      char* end = nullptr;
      const unsigned long long kib = std::strtoull(at + 1, &end, 10);
      if (*end != ':') break;
      const unsigned long long count = std::strtoull(end + 1, &end, 10);
      total += kib * 1024 * count;
      at = end;
    }
    if (total > 0) return total;
  }
  const int major = major_of(device);
  const bool large = major == 9 || major == 10 || major == 12;
  return large ? std::size_t{4096} * 8 * 1024
               : std::size_t{4096} * 1024 * 2 + std::size_t{16} * 1024 * 8;
}

void choose_cublas_workspace_bytes(std::optional<std::size_t> bytes) {
  g_chosen_bytes.store(bytes.has_value() ? static_cast<std::int64_t>(*bytes) : kNotChosen);
}

namespace {
// bytes() is asked only of what is not there yet.
template <class Bytes>
void keep(const Key& key, const Bytes& bytes) {
  {
    const std::lock_guard<std::mutex> lock(g_held_mutex);
    if (workspaces().count(key) != 0) return;
  }
  LibraryMemory made(bytes(), std::get<c10::DeviceIndex>(key));
  const std::lock_guard<std::mutex> lock(g_held_mutex);
  workspaces().emplace(key, std::move(made));
}
}  // namespace

void keep_cublas_workspace(c10::DeviceIndex device, CudaLibrary library) {
  thread_local const Handle kHandle;
  keep({device, kHandle.number, npusim::current_stream(device).id(), library}, [&] {
    return library == CudaLibrary::blas ? cublas_workspace_bytes(device) : kLtWorkspace;
  });
}

void keep_workspaces_of_product(c10::ArrayRef<const at::TensorBase*> operands,
                                c10::DeviceIndex device) {
  // The numbers of a node of a graph say which blocks its results have at every replay.
  if (GraphBlocks::replaying()) return;
  const std::size_t count = operands.size();
  if (count < 2 || operands[count - 1]->numel() == 0 || operands[count - 2]->numel() == 0) return;
  keep_cublas_workspace(device);
  if (count >= 3 && operands[count - 3]->dim() == 1 && operands[count - 2]->dim() == 2 &&
      operands[count - 1]->dim() == 2) {
    keep_cublas_workspace(device, CudaLibrary::blas_lt);
  }
}

void keep_dropout_state(c10::DeviceIndex device) {
  keep({device, 0, {}, CudaLibrary::dnn}, [] { return kDropoutState; });
}

std::vector<std::pair<c10::DeviceIndex, const void*>> cublas_workspaces() {
  std::vector<std::pair<c10::DeviceIndex, const void*>> out;
  const std::lock_guard<std::mutex> lock(g_held_mutex);
  for (const auto& [key, held] : workspaces()) out.emplace_back(std::get<0>(key), held.address());
  return out;
}

// Memory goes after the lock, which its destructor takes.
void clear_cublas_workspaces() {
  Workspaces held;
  const std::lock_guard<std::mutex> lock(g_held_mutex);
  held.swap(workspaces());
}

void clear_cublas_workspaces(const npusim::Stream& stream) {
  std::vector<LibraryMemory> held;
  const std::lock_guard<std::mutex> lock(g_held_mutex);
  for (auto at = workspaces().begin(); at != workspaces().end();) {
    const bool of_stream =
        std::get<0>(at->first) == stream.device() && std::get<2>(at->first) == stream.id();
    if (!of_stream) {
      ++at;
      continue;
    }
    held.push_back(std::move(at->second));
    at = workspaces().erase(at);
  }
}

void clear_captured_workspaces(const npusim::Stream& stream) {
  constexpr int kLastThatLeaves = 11;  // torch 2.11
  int minor = 0;
  const bool numbered = std::sscanf(npusim::config().allocator.c_str(), "cuda-2.%d", &minor) == 1;
  if (!numbered || minor > kLastThatLeaves) clear_cublas_workspaces(stream);
}

}  // namespace torch_npusim
