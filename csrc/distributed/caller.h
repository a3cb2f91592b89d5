// SPDX-License-Identifier: BSD-3-Clause
// Facts about the calling thread that only Python knows. csrc/python/bind_distributed.cpp sets the
// functions, which take the GIL; without them the answers are "" and false.
#pragma once

#include <string>

namespace torch_npusim::distributed {

// current_line() is the file and line of the program that the calling thread is in, or "".
std::string current_line();

// acts_alone() is whether no other thread of the program can take part in a collective while the
// calling one waits; in doubt it is not so. `is_rank`: the ranks are threads, of which it is one.
bool acts_alone(bool is_rank);

// tell_failure() says that a collective of rank `rank` of the job has failed.
void tell_failure(int rank);

using LineSource = std::string (*)();
using AloneCheck = bool (*)(bool is_rank);
using FailureSink = void (*)(int rank);
void set_caller(LineSource line, AloneCheck alone, FailureSink failure) noexcept;

}  // namespace torch_npusim::distributed
