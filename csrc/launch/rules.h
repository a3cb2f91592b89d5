// SPDX-License-Identifier: BSD-3-Clause
// The rule book: what another device does otherwise than the CPU, whose kernels run here. An
// operator that a row names gets a kernel that looks at its rows and then calls the operator's own;
// all others are left alone and cost nothing. The rows come from torch_npusim/cuda_rules.csv.
//
//   torch.mm(int64, int64)  ->  RuledKernel: row "aten::mm" refuse Long  ->  "addmm_cuda" not ...
//   torch.mm(float, float)  ->  RuledKernel: nothing                     ->  mm of csrc/aten
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torch_npusim {

struct RuleRow {
  enum class Verdict : std::uint8_t {
    refuse,            // not implemented for the dtype
    unavailable,       // no kernel at all
    nondeterministic,  // alerts under torch.use_deterministic_algorithms()
    widen,             // runs in a wider dtype, and the results come back
    keep,              // runs in a wider dtype, and the results stay
    fft,               // widen; sizes must be powers of two
    sum_of_numbers,    // nansum of complex numbers, which the CPU lacks
    asserts,           // an index out of range is a device-side assert
  };

  std::string op;  // "aten::mm", "aten::mm.out"
  Verdict verdict = Verdict::refuse;
  std::string when;          // about an argument, "" always: "weights", "mode=2", "reduction!=0"
  std::uint64_t dtypes = 0;  // of the first tensor, a bit per dtype; 0: all
  std::string text;          // of the error; for `widen` the name of the wider dtype
};

// set_rules() puts these rows in force instead of those before. Not while other threads call
// operators.
void set_rules(const std::vector<RuleRow>& rows);

// note_complex_half() puts the rows in force that are about complex32 only: such a tensor was made.
void note_complex_half();

// The dtype's bit, and its number as torch has it.
std::uint64_t dtype_bit(int dtype);

// What an index out of range is: an error of its call, or one that the device reports at its next
// synchronisation, and from then on.
enum class DeviceAssert : std::uint8_t { now, late };
void set_device_assert(DeviceAssert when) noexcept;
DeviceAssert device_assert() noexcept;

// How often each operator ran in a wider dtype, by name.
std::vector<std::pair<std::string, std::int64_t>> widened_calls();

}  // namespace torch_npusim
