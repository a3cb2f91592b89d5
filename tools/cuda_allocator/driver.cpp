// SPDX-License-Identifier: BSD-3-Clause
// Runs a program of allocations, from standard input, on torch's own allocator over
// fake_runtime.cpp:
//
//   m ID BYTES STREAM   allocate      -> "block ID ADDRESS", or "oom ID"
//   f ID                free; nothing if there was no room for it, as with r
//   r ID STREAM         record_stream
//   e                   empty_cache
//   s PERMILLE          set_per_process_memory_fraction
//   b POOL, n, x POOL   what follows goes to a private pool; no longer; its use ends
//   w STREAM NS         NS of work on a stream
//   a NS                time passes
//
// The end of the input brings "stat NAME VALUE" lines, with the names of torch.cuda.memory_stats().
// The fake runtime prints "segment", "release" and "reserve" lines between the answers.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#endif

#include <cstdio>
#include <unordered_map>

namespace c10::cuda::_internal {  // torch's libraries set it without a header, too
C10_CUDA_API void setHasPrimaryContext(bool (*)(DeviceIndex));
}

extern "C" void fake_run(cudaStream_t stream, std::int64_t ns);
extern "C" void fake_advance(std::int64_t ns);

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

void print_stats() {
  const auto stats = allocator::getDeviceStats(0);
  const auto print = [](const char* name, const auto& kinds) {
    std::printf("stat %s.all.current %lld\nstat %s.all.peak %lld\n", name,
                static_cast<long long>(kinds[0].current), name,
                static_cast<long long>(kinds[0].peak));
  };
  print("allocated_bytes", stats.allocated_bytes);
  print("reserved_bytes", stats.reserved_bytes);
  print("active_bytes", stats.active_bytes);
  print("inactive_split_bytes", stats.inactive_split_bytes);
  print("requested_bytes", stats.requested_bytes);
  print("segment", stats.segment);
  std::printf("stat num_alloc_retries %lld\nstat num_ooms %lld\n",
              static_cast<long long>(stats.num_alloc_retries),
              static_cast<long long>(stats.num_ooms));
}

}  // namespace

int main() {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  allocator::init(1);
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
  c10::cuda::detail::init_p2p_access_cache(1);
#endif
  std::unordered_map<unsigned long long, void*> blocks;
  const auto stream_of = [](unsigned long long number) {
    return reinterpret_cast<cudaStream_t>(number * 64);  // an odd one would be torch's own
  };
  char operation = 0;
  unsigned long long first = 0, second = 0, third = 0, pool = 0;
  while (std::scanf(" %c", &operation) == 1) {
    switch (operation) {
      case 'm':
        if (std::scanf("%llu %llu %llu", &first, &second, &third) != 3) return 2;
        try {
          blocks[first] = allocator::raw_alloc_with_stream(second, stream_of(third));
          std::printf("block %llu %llu\n", first,
                      reinterpret_cast<unsigned long long>(blocks[first]));
        } catch (const c10::OutOfMemoryError&) {
          std::printf("oom %llu\n", first);
        }
        break;
      case 'f':
        if (std::scanf("%llu", &first) != 1) return 2;
        if (const auto it = blocks.find(first); it != blocks.end()) {
          allocator::raw_delete(it->second);
          blocks.erase(it);
        }
        break;
      case 'r': {
        if (std::scanf("%llu %llu", &first, &second) != 2) return 2;
        const auto it = blocks.find(first);
        if (it == blocks.end()) break;
        void* const block = it->second;
        c10::DataPtr pointer(block, block, allocator::get()->raw_deleter(),
                             c10::Device(c10::kCUDA, 0));
        allocator::recordStream(pointer, c10::cuda::getStreamFromExternal(stream_of(second), 0));
        pointer.release_context();
        break;
      }
      case 'e':
        allocator::emptyCache();
        break;
      case 's':
        if (std::scanf("%llu", &first) != 1) return 2;
        allocator::setMemoryFraction(static_cast<double>(first) / 1000, 0);
        break;
      case 'b':
        if (std::scanf("%llu", &pool) != 1) return 2;
        allocator::beginAllocateToPool(0, {0, pool}, [](cudaStream_t) { return true; });
        break;
      case 'n':
        allocator::endAllocateToPool(0, {0, pool});
        break;
      case 'x':
        if (std::scanf("%llu", &first) != 1) return 2;
        allocator::releasePool(0, {0, first});
        break;
      case 'w':
        if (std::scanf("%llu %llu", &first, &second) != 2) return 2;
        fake_run(stream_of(first), static_cast<std::int64_t>(second));
        break;
      case 'a':
        if (std::scanf("%llu", &first) != 1) return 2;
        fake_advance(static_cast<std::int64_t>(first));
        break;
      default:
        return 2;
    }
  }
  print_stats();
  std::fflush(stdout);
  std::_Exit(0);
}
