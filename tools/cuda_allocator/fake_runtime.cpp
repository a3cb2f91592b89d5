// SPDX-License-Identifier: BSD-3-Clause
// A CUDA runtime that is only arithmetic: enough of it for torch's own caching allocator to run on
// a machine without a GPU. It behaves as allocator/fake_provider.h does, address for address.
//
//   cudaMalloc, and cuMem* for expandable segments: addresses ascend in steps of 2 MiB, or jump
//   about if FAKE_SCATTER is not 0; none is given twice. More than FAKE_CAPACITY bytes are out of
//   memory. Streams and events: fake_run() queues work, fake_advance() lets time pass.
//
// compare.py adds a stub, which ends the program, for every other function that libc10_cuda.so
// names.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace {

constexpr std::uint64_t kPage = std::uint64_t{1} << 21;
const std::size_t capacity = std::strtoull(std::getenv("FAKE_CAPACITY"), nullptr, 10);
const std::uint64_t scatter = std::strtoull(std::getenv("FAKE_SCATTER"), nullptr, 10);
std::uint64_t placed = 0;
std::uint64_t next_address = std::uint64_t{1} << 40;
std::uint64_t next_handle = 1;
std::size_t live_bytes = 0;
std::map<std::uint64_t, std::size_t> segments, handles;
std::map<cudaStream_t, std::int64_t> stream_end;
std::int64_t now = 0;
struct Event {
  std::int64_t at = 0;
};

std::uint64_t place(std::size_t bytes) {
  if (scatter != 0) return ((++placed * (2 * scatter + 1)) % (1 << 20) + 1) << 40;
  const std::uint64_t address = next_address;
  next_address += (bytes + kPage - 1) / kPage * kPage;
  return address;
}

void* driver_function(const char* name) {
  void* function = dlsym(RTLD_DEFAULT, name);
  if (function != nullptr) return function;
  return reinterpret_cast<void*>(+[] {
    std::fputs("a function of the driver was called that the fake has not\n", stderr);
    std::_Exit(3);
  });
}

}  // namespace

extern "C" {

// --- The driver's functions. CUresult is an int. cudaGetDriverEntryPoint hands them out; torch 2.4
// looks for them in libcuda.so.1.

int cuMemAddressReserve(unsigned long long* address, std::size_t bytes, std::size_t,
                        unsigned long long, unsigned long long) {
  *address = place(bytes + kPage);
  std::printf("reserve %llu %zu\n", *address, bytes);
  return 0;
}
int cuMemCreate(unsigned long long* handle, std::size_t bytes, const void*, unsigned long long) {
  if (bytes > capacity - live_bytes) return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  live_bytes += bytes;
  handles[*handle = next_handle++] = bytes;
  return 0;
}
int cuMemRelease(unsigned long long handle) {
  live_bytes -= handles.at(handle);
  handles.erase(handle);
  return 0;
}
int cuMemGetAllocationGranularity(std::size_t* bytes, const void*, int) {
  *bytes = kPage;
  return 0;
}
int cuMemMap() { return 0; }
int cuMemUnmap() { return 0; }
int cuMemSetAccess() { return 0; }
int cuMemAddressFree() { return 0; }
int cuDeviceGet() { return 0; }
int cuDeviceGetAttribute() { return 0; }
int cuLogsRegisterCallback() { return 0; }
int cuLogsUnregisterCallback() { return 0; }

// --- The runtime's.

void fake_run(cudaStream_t stream, std::int64_t ns) {
  std::int64_t& end = stream_end[stream];
  end = std::max(end, now) + ns;
}
void fake_advance(std::int64_t ns) { now += ns; }

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  if (bytes > capacity - live_bytes) return cudaErrorMemoryAllocation;
  const std::uint64_t given = place(bytes);
  segments[given] = bytes;
  live_bytes += bytes;
  std::printf("segment %llu %zu\n", static_cast<unsigned long long>(given), bytes);
  *address = reinterpret_cast<void*>(given);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  for (const auto& [stream, end] : stream_end) now = std::max(now, end);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  now = std::max(now, stream_end[stream]);
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {  // waits for the device, as CUDA's does
  cudaDeviceSynchronize();
  const auto it = segments.find(reinterpret_cast<std::uint64_t>(address));
  if (it == segments.end()) return cudaErrorInvalidValue;
  live_bytes -= it->second;
  std::printf("release %llu\n", static_cast<unsigned long long>(it->first));
  segments.erase(it);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = capacity - live_bytes;
  *total = capacity;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  reinterpret_cast<Event*>(event)->at = std::max(stream_end[stream], now);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return reinterpret_cast<Event*>(event)->at <= now ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  now = std::max(now, reinterpret_cast<Event*>(event)->at);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  properties->totalGlobalMem = capacity;
  properties->major = 8;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake runtime"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = driver_function(name);
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* found) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, found);
}

}  // extern "C"
