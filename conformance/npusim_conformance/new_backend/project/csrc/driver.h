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
  MYCHIP_NO_SUCH_STREAM,
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

// Each device has streams 0 to MYCHIP_STREAMS - 1. Work in one stream is done in its order; copies
// from and to the host have finished when the call returns.
enum { MYCHIP_STREAMS = 32 };
mychip_status mychip_copy_to_device(int device, int stream, void* to, const void* from,
                                    size_t bytes);
mychip_status mychip_copy_to_host(int device, int stream, void* to, const void* from, size_t bytes);
mychip_status mychip_copy_between(int to_device, int stream, void* to, int from_device,
                                  const void* from, size_t bytes);
mychip_status mychip_launch(int device, int stream, mychip_kernel kernel, const void* arguments,
                            size_t bytes);
mychip_status mychip_is_idle(int device, int stream, int* is_idle);
mychip_status mychip_synchronize(int device, int stream);

// A point in a stream's work. Recording makes the event, or moves one that is there.
typedef struct mychip_event mychip_event;
mychip_status mychip_event_record(int device, int stream, mychip_event** event);
mychip_status mychip_event_wait(int device, int stream, const mychip_event* event);
mychip_status mychip_event_is_done(const mychip_event* event, int* is_done);
mychip_status mychip_event_synchronize(const mychip_event* event);
mychip_status mychip_event_milliseconds(const mychip_event* event, double* milliseconds);
mychip_status mychip_event_free(mychip_event* event);

#ifdef __cplusplus
}
#endif
