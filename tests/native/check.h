// SPDX-License-Identifier: BSD-3-Clause
// The native test harness: TEST bodies register themselves, a failed check ends its own test only,
// and main prints "N passed, M failed". One *_test.cpp file includes this and is one executable.
// Arguments are substrings of the names of the tests to run.
#pragma once

#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC diagnostic ignored "-Wsign-compare"  // CHECK_EQ(count, 5) is the point

namespace check {

using Case = std::pair<const char*, void (*)()>;

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline int add(const char* name, void (*body)()) { return cases().emplace_back(name, body), 0; }

[[noreturn]] inline void fail(const char* file, int line, const std::string& text) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

template <class A, class B>
void equal(const A& a, const B& b, const char* file, int line, const char* text) {
  if (a == b) return;
  std::ostringstream out;
  if constexpr (requires { out << a << b; })
    out << a << " vs " << b;
  else if constexpr (std::is_enum_v<A>)
    out << int(a) << " vs " << int(b);
  fail(file, line, std::string(text) + ": " + out.str());
}

inline int run(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const auto& [name, body] : cases()) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) wanted |= std::string(name).find(argv[i]) != std::string::npos;
    if (!wanted) continue;
    try {
      body();
      ++passed;
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAIL %s\n  %s\n", name, error.what());
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0 || passed == 0;
}

}  // namespace check

#define TEST(name)                                                                 \
  static void test_##name();                                                       \
  [[maybe_unused]] static const int added_##name = check::add(#name, test_##name); \
  static void test_##name()
#define CHECK(...) \
  ((__VA_ARGS__) ? void() : check::fail(__FILE__, __LINE__, "false: " #__VA_ARGS__))
#define CHECK_EQ(a, b) check::equal(a, b, __FILE__, __LINE__, #a " == " #b)
#define CHECK_THROWS(statement, Type)                                     \
  try {                                                                   \
    statement;                                                            \
    throw 0;                                                              \
  } catch (const Type&) {                                                 \
  } catch (...) {                                                         \
    check::fail(__FILE__, __LINE__, #statement " does not throw " #Type); \
  }

int main(int argc, char** argv) { return check::run(argc, argv); }
