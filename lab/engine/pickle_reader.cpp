// SPDX-License-Identifier: BSD-3-Clause
// The machine behind pickles: a stack, marks in it, and a memo. The opcodes are those of Python's
// Lib/pickletools.py.
#include "lab/engine/pickle_reader.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "allocator/error.h"
#include "lab/engine/names.h"
#include "lab/engine/pickle_memo.h"

namespace npusim::lab {
namespace {

using Kind = PickleValue::Kind;

constexpr std::uint64_t kFreeBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kBytesPerByte = 8;  // of memory, beyond those; a snapshot takes one or two
constexpr std::size_t kLongest = 200;       // of a foreign text in an error

struct OpcodeName {
  std::uint8_t code;
  const char* name;
};

// Those that are refused by name; what is missing here and below is no opcode.
constexpr OpcodeName kRefused[] = {
    {'I', "INT"},          {'L', "LONG"},
    {'S', "STRING"},       {'V', "UNICODE"},
    {'F', "FLOAT"},        {'p', "PUT"},
    {'g', "GET"},          {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
    {0x8f, "EMPTY_SET"},   {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},   {'R', "REDUCE"},
    {'b', "BUILD"},        {'i', "INST"},
    {'o', "OBJ"},          {0x81, "NEWOBJ"},
    {0x92, "NEWOBJ_EX"},   {'P', "PERSID"},
    {'Q', "BINPERSID"},    {0x82, "EXT1"},
    {0x83, "EXT2"},        {0x84, "EXT4"},
    {'c', "GLOBAL"},       {0x93, "STACK_GLOBAL"},
};

class Machine {
 public:
  Machine(ByteSource& source, PickleValues& values) : in_(source), values_(values), memo_(source) {}

  PickleValue run() {
    if (in_.left() < 2 || in_.byte() != 0x80) {
      refuse("it does not begin as a pickle of protocol 2 to 5. Nothing of it was run");
    }
    const std::uint8_t protocol = in_.byte();
    if (protocol < 2 || protocol > 5) {
      refuse("protocol ", int{protocol}, "; expected 2 to 5. Nothing of it was run");
    }
    for (std::uint64_t steps = 1;; ++steps) {
      at_ = in_.position();
      const std::uint8_t opcode = number<std::uint8_t>();
      if (opcode == '.') return pop();
      step(opcode);
      if (steps % 4096 == 0) check_memory();
    }
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    std::ostringstream text;
    text << "byte " << at_ << ": ";
    (text << ... << parts);
    throw InvalidArgument(text.str());
  }

  void step(std::uint8_t opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        need(1);
        in_.skip(1);
        return;
      case 0x95:  // FRAME: how many bytes belong together; of no use here
        need(8);
        in_.skip(8);
        return;
      case '(':  // MARK
        marks_.push_back(stack_.size());
        return;
      case '0':  // POP
        if (!marks_.empty() && marks_.back() == stack_.size()) {
          marks_.pop_back();
        } else {
          pop();
        }
        return;
      case '1':  // POP_MARK
        drop_to_mark(mark());
        return;
      case '2':  // DUP
        push(peek());
        return;
      case 'N':
        push({Kind::none, 0});
        return;
      case 0x88:  // NEWTRUE
        push({Kind::boolean, 1});
        return;
      case 0x89:  // NEWFALSE
        push({Kind::boolean, 0});
        return;
      case 'J':  // BININT
        push(values_.make_integer(number<std::int32_t>()));
        return;
      case 'K':  // BININT1
        push(values_.make_integer(number<std::uint8_t>()));
        return;
      case 'M':  // BININT2
        push(values_.make_integer(number<std::uint16_t>()));
        return;
      case 0x8a:  // LONG1
        read_long(number<std::uint8_t>());
        return;
      case 0x8b:  // LONG4
        read_long(length(number<std::int32_t>()));
        return;
      case 'G':  // BINFLOAT
        number<std::uint64_t>();
        push({Kind::real, 0});
        return;
      case 'U':   // SHORT_BINSTRING
      case 0x8c:  // SHORT_BINUNICODE
        read_text(number<std::uint8_t>());
        return;
      case 'T':  // BINSTRING
        read_text(length(number<std::int32_t>()));
        return;
      case 'X':  // BINUNICODE
        read_text(number<std::uint32_t>());
        return;
      case 0x8d:  // BINUNICODE8
        read_text(number<std::uint64_t>());
        return;
      case 'C':  // SHORT_BINBYTES
        skip_bytes(number<std::uint8_t>());
        return;
      case 'B':  // BINBYTES
        skip_bytes(number<std::uint32_t>());
        return;
      case 0x8e:  // BINBYTES8
        skip_bytes(number<std::uint64_t>());
        return;
      default:
        step_container(opcode);
    }
  }

  void step_container(std::uint8_t opcode) {
    switch (opcode) {
      case ')':  // EMPTY_TUPLE
        push(values_.make_tuple({}));
        return;
      case 0x85:  // TUPLE1
      case 0x86:
      case 0x87: {
        const PickleItems items = top(opcode - 0x84U);
        const PickleValue tuple = values_.make_tuple(items);
        stack_.resize(stack_.size() - items.size());
        push(tuple);
        return;
      }
      case 't': {  // TUPLE
        const std::size_t from = mark();
        replace_to_mark(from, values_.make_tuple(since(from)));
        return;
      }
      case ']':  // EMPTY_LIST
        push(values_.make_list());
        return;
      case 'l': {  // LIST
        const std::size_t from = mark();
        const PickleValue list = values_.make_list();
        values_.append(list, since(from));
        replace_to_mark(from, list);
        return;
      }
      case 'a': {  // APPEND
        const PickleItems item = top(1);
        values_.append(target(1, 0, Kind::list, "list"), item);
        stack_.pop_back();
        return;
      }
      case 'e': {  // APPENDS
        const std::size_t from = mark();
        values_.append(target(stack_.size() - from, 1, Kind::list, "list"), since(from));
        drop_to_mark(from);
        return;
      }
      case '}':  // EMPTY_DICT
        push(values_.make_dict());
        return;
      case 'd': {  // DICT
        const std::size_t from = mark();
        const PickleValue dict = values_.make_dict();
        values_.set_items(dict, pairs(from));
        replace_to_mark(from, dict);
        return;
      }
      case 's': {  // SETITEM
        const PickleItems pair = top(2);
        values_.set_items(target(2, 0, Kind::dict, "dictionary"), pair);
        stack_.resize(stack_.size() - 2);
        return;
      }
      case 'u': {  // SETITEMS
        const std::size_t from = mark();
        values_.set_items(target(stack_.size() - from, 1, Kind::dict, "dictionary"), pairs(from));
        drop_to_mark(from);
        return;
      }
      default:
        step_memo(opcode);
    }
  }

  void step_memo(std::uint8_t opcode) {
    switch (opcode) {
      case 'q':  // BINPUT
        put(number<std::uint8_t>());
        return;
      case 'r':  // LONG_BINPUT
        put(number<std::uint32_t>());
        return;
      case 0x94:  // MEMOIZE
        put(memo_.size());
        return;
      case 'h':  // BINGET
        get(number<std::uint8_t>());
        return;
      case 'j':  // LONG_BINGET
        get(number<std::uint32_t>());
        return;
      default:
        refuse_opcode(opcode);
    }
  }

  // --- Opcodes that are not obeyed.

  [[noreturn]] void refuse_opcode(std::uint8_t opcode) {
    constexpr const char* kWhy =
        "; a snapshot holds numbers, texts, lists and dictionaries only. Nothing of it was run: do "
        "not open this file with pickle.load()";
    if (opcode == 'c') {
      const std::string module = foreign_line();
      refuse("GLOBAL asks for ", module, ".", foreign_line(), kWhy);
    }
    if (opcode == 0x93 && stack_.size() >= 2) {
      const PickleValue module = stack_[stack_.size() - 2], name = stack_.back();
      if (module.kind() == Kind::text && name.kind() == Kind::text) {
        refuse("STACK_GLOBAL asks for ", foreign(values_.text(module)), ".",
               foreign(values_.text(name)), kWhy);
      }
    }
    for (const auto& [code, name] : kRefused) {
      if (code == opcode) refuse("opcode ", name, kWhy);
    }
    refuse(int{opcode}, " is no opcode; the file is damaged");
  }

  std::string foreign_line() {
    std::string line;
    while (!in_.is_at_end() && line.size() < kLongest) {
      const char letter = static_cast<char>(in_.byte());
      if (letter == '\n') break;
      line.push_back(letter);
    }
    return foreign(line);
  }

  static std::string foreign(std::string_view text) {
    std::string shown(text.substr(0, kLongest));
    for (char& letter : shown) {
      if (letter < ' ' || letter > '~') letter = '?';
    }
    return shown;
  }

  // --- Reading.

  void need(std::uint64_t bytes) const {
    if (in_.left() < bytes) {
      refuse("the file ends here, where ", bytes, " bytes should follow and ", in_.left(),
             " do; it was cut off");
    }
  }

  template <class Number>
  Number number() {
    need(sizeof(Number));
    Number value;
    std::memcpy(&value, in_.take(sizeof(Number)), sizeof(Number));
    return value;
  }

  std::uint64_t length(std::int32_t given) const {
    if (given < 0) refuse("a length of ", given);
    return static_cast<std::uint64_t>(given);
  }

  void read_long(std::uint64_t bytes) {
    need(bytes);
    if (bytes > 9) {
      in_.skip(bytes);
      push({Kind::huge, 0});
      return;
    }
    const auto count = static_cast<std::size_t>(bytes);
    const std::uint8_t* from = in_.take(count);
    std::uint64_t value = 0;
    std::memcpy(&value, from, std::min<std::size_t>(count, 8));
    const bool is_negative = count > 0 && (from[count - 1] & 0x80) != 0;
    if (count == 9) {
      push(from[8] == 0 ? values_.make_wide(value) : PickleValue{Kind::huge, 0});
      return;
    }
    if (is_negative && count < 8) value |= ~std::uint64_t{0} << (8 * count);
    push(is_negative ? values_.make_integer(static_cast<std::int64_t>(value))
                     : values_.make_wide(value));
  }

  void read_text(std::uint64_t bytes) {
    need(bytes);
    const auto count = static_cast<std::size_t>(bytes);
    const void* from = in_.take(count);
    push(values_.make_text({static_cast<const char*>(from), count}));
  }

  void skip_bytes(std::uint64_t bytes) {
    need(bytes);
    in_.skip(bytes);
    push({Kind::bytes, 0});
  }

  // --- The stack.

  void push(PickleValue value) { stack_.push_back(value); }

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  PickleItems top(std::size_t count) const {
    if (stack_.size() - floor() < count) refuse("the stack is too short; the file is damaged");
    return PickleItems(stack_).last(count);
  }
  PickleValue peek() const { return top(1)[0]; }
  PickleValue pop() {
    const PickleValue value = peek();
    stack_.pop_back();
    return value;
  }

  // Where the innermost mark is. It stays until drop_to_mark() or replace_from().
  std::size_t mark() const {
    if (marks_.empty()) refuse("no mark is left; the file is damaged");
    return marks_.back();
  }
  PickleItems since(std::size_t from) const { return PickleItems(stack_).subspan(from); }
  PickleItems pairs(std::size_t from) const {
    if ((stack_.size() - from) % 2 != 0) refuse("a dictionary has a key without a value");
    return since(from);
  }
  void drop_to_mark(std::size_t from) {
    stack_.resize(from);
    marks_.pop_back();
  }
  void replace_to_mark(std::size_t from, PickleValue value) {
    drop_to_mark(from);
    push(value);
  }

  // The container on top of which the uppermost `count` values are added; a mark may lie between.
  PickleValue target(std::size_t count, std::size_t marks, Kind kind, const char* name) const {
    const std::size_t below = stack_.size() - count;
    const std::size_t least = marks_.size() > marks ? marks_[marks_.size() - 1 - marks] : 0;
    if (below <= least || stack_[below - 1].kind() != kind) {
      refuse("entries are added to something that is no ", name, "; the file is damaged");
    }
    return stack_[below - 1];
  }

  // --- The memo. Every writer numbers its entries in order, or leaves few out.

  void put(std::size_t number) {
    if (number > 2 * memo_.size() + 1024) {
      refuse("memo entry ", number, " after only ", memo_.size(), "; no writer does that");
    }
    memo_.put(number, peek());
  }

  void get(std::size_t number) {
    const PickleValue value = memo_.get(number);
    if (value.kind() == Kind::missing) {
      refuse("memo entry ", number, " is used before it is set");
    }
    push(value);
  }

  void check_memory() const {
    const std::uint64_t used = values_.bytes() + memo_.bytes() +
                               stack_.capacity() * sizeof(PickleValue) +
                               marks_.capacity() * sizeof(std::size_t);
    if (used > kFreeBytes + kBytesPerByte * in_.size()) {
      refuse("what is read so far takes ", used, " bytes, more than ", kBytesPerByte,
             " times the file; no snapshot does");
    }
  }

  ByteSource& in_;
  PickleValues& values_;
  std::uint64_t at_ = 0;  // of the opcode
  std::vector<PickleValue> stack_;
  std::vector<std::size_t> marks_;
  PickleMemo memo_;
};

}  // namespace

PickleValue read_pickle(ByteSource& source, PickleValues& values) {
  return Machine(source, values).run();
}

}  // namespace npusim::lab
