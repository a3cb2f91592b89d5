// SPDX-License-Identifier: BSD-3-Clause
// Memory that CUDA's libraries hold beside tensors: a workspace of cuBLAS for each handle and
// stream, two numbers for each generator of a capture. It counts under the CUDA alias, and in a dry
// run that allocates as CUDA does; a dry run has workspaces of its own.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Allocator.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace torch_npusim {

// LibraryMemory is a block that no tensor has.
class LibraryMemory {
 public:
  LibraryMemory(std::size_t bytes, c10::DeviceIndex device);
  ~LibraryMemory();
  LibraryMemory(LibraryMemory&&) noexcept = default;
  LibraryMemory& operator=(LibraryMemory&&) = delete;

  const void* address() const noexcept { return held_.get(); }

 private:
  c10::DataPtr held_;
};

// is_library_memory() is whether a block that starts at the address is one of those.
bool is_library_memory(const void* address);

enum class CudaLibrary { blas, blas_lt, dnn };

// keep_cublas_workspace() allocates that of this thread's handle and the device's current stream,
// unless it is there. A handle of a thread that has ended serves another one.
void keep_cublas_workspace(c10::DeviceIndex device, CudaLibrary library = CudaLibrary::blas);

// keep_workspaces_of_product() does so for a product of matrices or vectors, unless one is empty. A
// vector that is added to each row goes through cublasLt. The factors come last.
void keep_workspaces_of_product(c10::ArrayRef<const at::TensorBase*> operands,
                                c10::DeviceIndex device);

// keep_dropout_state() allocates the states of random numbers that cuDNN's recurrent layers share
// on a device, unless they are there.
void keep_dropout_state(c10::DeviceIndex device);

// cublas_workspaces() returns device and address of those that are held now.
std::vector<std::pair<c10::DeviceIndex, const void*>> cublas_workspaces();

// cublas_workspace_bytes() is the size of the next one on a device. A size that is chosen counts
// before the variable CUBLAS_WORKSPACE_CONFIG; std::nullopt takes the choice back.
std::size_t cublas_workspace_bytes(c10::DeviceIndex device);
void choose_cublas_workspace_bytes(std::optional<std::size_t> bytes);

// clear_cublas_workspaces() gives back those that are held now, of one stream or of all.
void clear_cublas_workspaces();
void clear_cublas_workspaces(const npusim::Stream& stream);

// clear_captured_workspaces() gives back those of a captured graph's stream, as torch does with the
// graph; presets of torch 2.11 and older leave them, as peaks of an H100 with 2.11 show.
void clear_captured_workspaces(const npusim::Stream& stream);

}  // namespace torch_npusim
