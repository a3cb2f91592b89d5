// SPDX-License-Identifier: BSD-3-Clause
// OneVectorThread: while it lives, MKL's vector functions (exp, sqrt ...) use the calling thread
// only, if the work is too small to share. By itself MKL starts all threads from 100 elements on,
// torch's loops from 32,768 on; waking the others takes 1 us if they spin and 10 to 50 us if they
// sleep (OMP_WAIT_POLICY=passive). The bits are the same. Only loops of one operand call MKL.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torch_npusim {

class OneVectorThread {
 public:
  OneVectorThread(std::size_t operands, std::int64_t elements) {
    if (operands == 1 && elements < kWorthSharing) enter();
  }
  ~OneVectorThread() {
    if (threads_ != 0) leave();
  }
  OneVectorThread(const OneVectorThread&) = delete;
  OneVectorThread& operator=(const OneVectorThread&) = delete;

 private:
  static constexpr std::int64_t kWorthSharing = 8192;
  void enter() noexcept;
  void leave() const noexcept;

  int threads_ = 0;  // what the limits were, if they were changed
  int mkl_threads_ = 0;
};

}  // namespace torch_npusim
