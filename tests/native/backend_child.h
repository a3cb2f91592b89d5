// SPDX-License-Identifier: BSD-3-Clause
// Runs a test body in a forked child: its own environment, limits, devices and death.
// Invariant: the parent neither initializes the devices nor starts threads, so that each child is
// as fresh as a new process. Used by the backend tests that end processes or change limits.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

namespace child {

// run() returns the wait status: see exited() and died(). An exception is printed, exit 1.
template <class Body>
int run(Body&& body) {
  std::fflush(nullptr);
  const pid_t process = fork();
  if (process == 0) {
    signal(SIGSEGV, SIG_DFL);  // a sanitizer would report it and exit
    int code = 0;
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the child: %s\n", error.what());
      code = 1;
    }
    std::fflush(nullptr);
    _exit(code);
  }
  int status = -1;
  waitpid(process, &status, 0);
  return status;
}

inline bool exited(int status, int code = 0) {
  return WIFEXITED(status) && WEXITSTATUS(status) == code;
}
inline bool died(int status, int signal) {
  return WIFSIGNALED(status) && WTERMSIG(status) == signal;
}

}  // namespace child
