// SPDX-License-Identifier: BSD-3-Clause
// CUDA rules (NPUSIM_RULES=cuda): CUDA refuses calls that the CPU kernels here accept, or computes
// in another dtype. One row states one such difference; the rows come from
// torch_npusim/cuda_rules.csv. An operator with rows gets a kernel in front of its own; all others
// are untouched and pay nothing.
//
//   torch.mm(int64, int64)  ->  RuledKernel: row "aten::mm" refuse Long  ->  "addmm_cuda" not ...
//   torch.mm(float, float)  ->  RuledKernel: nothing                     ->  mm of csrc/aten
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torch_npusim {

struct CudaRule {
  enum class Verdict : std::uint8_t {
    refuse,            // not implemented for the dtype
    nondeterministic,  // alerts under torch.use_deterministic_algorithms()
    widen,             // runs in a wider dtype, and the results come back
    keep,              // runs in a wider dtype, and the results stay
    statistics,        // of norms come in the wider dtype, and go back in it
    fft,               // widen; sizes must be powers of two
    sum_of_numbers,    // nansum of complex numbers, which the CPU lacks
    assume,            // takes `text` for the argument that `when` is about
    by_zero,           // a quotient of integers by zero is no error, and undefined
    asserts,           // an index out of range, or what `text` says, is a device-side assert
  };

  std::string op;  // "aten::mm", "aten::mm.out"
  Verdict verdict = Verdict::refuse;
  std::string when;          // about an argument, "" always: "weights", "mode=2", "self.size(1)%8"
  std::uint64_t dtypes = 0;  // of the first tensor, a bit per dtype; 0: all
  std::string text;          // of the error; for `widen` the name of the wider dtype
};

// set_cuda_rules() replaces the rows in force. No other thread may call operators meanwhile. Raises
// for a row whose operator or argument does not exist.
void set_cuda_rules(const std::vector<CudaRule>& rows);

// are_cuda_rules_in_force() is whether there is any row. Lock-free.
bool are_cuda_rules_in_force() noexcept;

// apply_rare_rules() is called when a tensor of a rare dtype is made and puts the rows in force
// that are about such dtypes only; before, they would slow down common operators. Thread-safe.
void apply_rare_rules();

// The dtype's bit, and its number as torch has it.
std::uint64_t dtype_bit(int dtype);

// When an index out of range is reported: at its call; at its call, and by each call of the device
// from then on; or, as on CUDA, by the device at its next synchronisation and from then on.
enum class DeviceAssert : std::uint8_t { now, lasting, late };
void set_device_assert(DeviceAssert when) noexcept;
DeviceAssert device_assert() noexcept;

// How often each operator ran in a wider dtype, by name.
std::vector<std::pair<std::string, std::int64_t>> widened_calls();

}  // namespace torch_npusim
