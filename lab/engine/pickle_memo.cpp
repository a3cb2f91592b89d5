// SPDX-License-Identifier: BSD-3-Clause
// Finding what a pickle takes from its memo: opcodes are skipped with their arguments.
#include "lab/engine/pickle_memo.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "lab/engine/names.h"

namespace npusim::lab {
namespace {

constexpr std::string_view kBare = "(012N\x88\x89)\x85\x86\x87t]lae}dsu\x94";

// The bytes of an opcode's argument; of a text only those of its length.
int argument_of(std::uint8_t opcode) {
  switch (opcode) {
    case 0x80:
    case 'K':
    case 0x8a:
    case 'U':
    case 0x8c:
    case 'C':
    case 'q':
    case 'h':
      return 1;
    case 'M':
      return 2;
    case 'J':
    case 0x8b:
    case 'T':
    case 'X':
    case 'B':
    case 'r':
    case 'j':
      return 4;
    case 0x95:
    case 'G':
    case 0x8d:
    case 0x8e:
      return 8;
    default:
      return kBare.find(static_cast<char>(opcode)) == std::string_view::npos ? -1 : 0;
  }
}

bool has_contents(std::uint8_t opcode) {
  constexpr std::string_view kWithLength =
      "\x8a\x8bU\x8cTX\x8d"
      "CB\x8e";
  return kWithLength.find(static_cast<char>(opcode)) != std::string_view::npos;
}

}  // namespace

PickleMemo::PickleMemo(ByteSource& source) {
  while (!source.is_at_end()) {
    const std::uint64_t position = source.position();
    const std::uint8_t opcode = source.byte();
    const int length = argument_of(opcode);
    if (length < 0 || source.left() < static_cast<std::uint64_t>(length)) break;
    std::uint64_t argument = 0;
    if (length > 0) {
      const auto count = static_cast<std::size_t>(length);
      std::memcpy(&argument, source.take(count), count);
    }
    if (opcode == 'h' || opcode == 'j') ask(argument, position);
    if (!has_contents(opcode)) continue;
    if (argument > source.left()) break;
    source.skip(argument);
  }
  source.rewind();
  before_.reserve(asked_.size());
  std::uint32_t count = 0;
  for (const std::uint64_t word : asked_) {
    before_.push_back(count);
    count += static_cast<std::uint32_t>(std::popcount(word));
  }
  values_.resize(count);
}

void PickleMemo::ask(std::uint64_t number, std::uint64_t position) {
  if (number >= position) return;  // nothing was put there: no byte is left for it
  const auto word = static_cast<std::size_t>(number / 64);
  if (word >= asked_.size()) asked_.resize(word + 1);
  asked_[word] |= std::uint64_t{1} << number % 64;
}

void PickleMemo::put(std::size_t number, PickleValue value) {
  size_ = std::max(size_, number + 1);
  if (is_asked(number)) values_[place(number)] = value;
}

PickleValue PickleMemo::get(std::size_t number) const {
  return is_asked(number) ? values_[place(number)] : PickleValue();
}

std::size_t PickleMemo::place(std::size_t number) const {
  const std::uint64_t lower = (std::uint64_t{1} << number % 64) - 1;
  const int inside = std::popcount(asked_[number / 64] & lower);
  return before_[number / 64] + static_cast<std::size_t>(inside);
}

std::size_t PickleMemo::bytes() const noexcept {
  return values_.capacity() * sizeof(PickleValue) + asked_.capacity() * 8 + before_.capacity() * 4;
}

}  // namespace npusim::lab
