// SPDX-License-Identifier: BSD-3-Clause
// Device memory for allocators of your own, in C. A library with two functions like these is loaded
// by torch.npusim.memory.NPUSIMPluggableAllocator(path, "my_alloc", "my_free"); link it against
// nothing, the names below are found when it is loaded.
//
//   void* my_alloc(int64_t bytes, int device, int64_t stream) { return npusim_malloc(bytes,
//   device); } void my_free(void* address, int64_t bytes, int device, int64_t stream) {
//   npusim_free(address); }
//
// Compile it with torch_npusim.cpp_extension.include_paths(), as a shared library.
//
// `stream` is the id of a torch.Stream. The functions are called with a lock of the device's
// allocator held: they must not call torch. An address is the device's, the host cannot read it.
#ifndef TORCH_NPUSIM_MEMORY_H_
#define TORCH_NPUSIM_MEMORY_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// npusim_malloc() returns `bytes`, rounded up to whole pages, of a device's memory, which reads as
// zero; NULL where there is no room, or for what makes no sense. Thread-safe.
void* npusim_malloc(int64_t bytes, int device);

// npusim_free() gives back what npusim_malloc() returned, after the device has finished its work;
// NULL is ignored, another address reported on stderr and ignored. Thread-safe.
void npusim_free(void* address);

#ifdef __cplusplus
}
#endif

#endif  // TORCH_NPUSIM_MEMORY_H_
