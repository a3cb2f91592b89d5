// SPDX-License-Identifier: BSD-3-Clause
// The limits of threads, of this thread alone, that MKL's vector functions look at.
#include "csrc/routes/one_vector_thread.h"

#include <ATen/Parallel.h>

// Of the libraries that torch brings: MKL's vector functions start threads if either limit lets
// them. Builds of torch without MKL or OpenMP have none.
extern "C" void omp_set_num_threads(int threads) __attribute__((weak));
extern "C" int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));

namespace torch_npusim {

void OneVectorThread::enter() noexcept {
  const int threads = at::get_num_threads();
  if (threads == 1 || omp_set_num_threads == nullptr || MKL_Set_Num_Threads_Local == nullptr)
    return;
  omp_set_num_threads(1);
  mkl_threads_ = MKL_Set_Num_Threads_Local(1);
  threads_ = threads;
}

void OneVectorThread::leave() const noexcept {
  MKL_Set_Num_Threads_Local(mkl_threads_);
  omp_set_num_threads(threads_);
}

}  // namespace torch_npusim
