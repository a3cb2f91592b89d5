// SPDX-License-Identifier: BSD-3-Clause
// The few functions of NVML that the allocator asks: no other process, and no fabric between GPUs.
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = nullptr;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return 0;
}
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 3; }  // NVML_ERROR_NOT_SUPPORTED
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return 3; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
}
