// SPDX-License-Identifier: BSD-3-Clause
// The driver of mychip as its vendor ships it: plain C, no torch. Addresses that it gives are the
// device's; the host does not read them. Put your own driver behind these functions.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  MYCHIP_OK = 0,
  MYCHIP_NO_SUCH_DEVICE,
  MYCHIP_OUT_OF_MEMORY,
  MYCHIP_BAD_ADDRESS
} mychip_status;

// A program for the device; its arguments are copied when it is launched.
typedef void (*mychip_kernel)(const void* arguments);

const char* mychip_status_text(mychip_status status);
mychip_status mychip_device_count(int* count);
mychip_status mychip_device_name(int device, const char** name);
mychip_status mychip_memory_info(int device, size_t* free_bytes, size_t* total_bytes);
mychip_status mychip_malloc(int device, size_t bytes, void** address);
mychip_status mychip_free(int device, void* address);
mychip_status mychip_copy_to_device(int device, void* to, const void* from, size_t bytes);
mychip_status mychip_copy_to_host(int device, void* to, const void* from, size_t bytes);
mychip_status mychip_copy_between(int to_device, void* to, int from_device, const void* from,
                                  size_t bytes);
mychip_status mychip_fill(int device, void* to, unsigned char value, size_t bytes);
mychip_status mychip_launch(int device, mychip_kernel kernel, const void* arguments, size_t bytes);
mychip_status mychip_synchronize(int device);

#ifdef __cplusplus
}
#endif
