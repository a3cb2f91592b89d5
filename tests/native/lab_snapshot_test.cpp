// SPDX-License-Identifier: BSD-3-Clause
// Whatever bytes a snapshot file holds, it is read or refused with a sentence, in memory bounded by
// its size. As a test the bytes are mutations of a good file (fuzz.h). Built with
// -DNPUSIM_LIBFUZZER -fsanitize=fuzzer it is a target of libFuzzer.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <string_view>

#include "allocator/error.h"
#include "lab/engine/names.h"
#include "lab/engine/snapshot_reader.h"
#include "tests/native/fuzz.h"

using namespace npusim::lab;

namespace {

using fuzzing::Input;

// Returns what became of the input: the error without its numbers, or how much was read.
std::string read_input(const Input& input) {
  try {
    const SnapshotReader reader{ByteSource(input)};
    std::string found = "read";
    for (const std::int64_t device : reader.devices()) {
      const SnapshotTables tables = reader.tables(device);
      const std::size_t rows = tables.entries.op.size() + tables.blocks.address.size();
      if (rows > input.size()) std::abort();
      for (const std::uint32_t stack : tables.entries.stack) {
        if (stack >= tables.stacks.size()) std::abort();
      }
      for (const std::size_t count : {rows, tables.frames.size()}) {
        found += ' ';
        found += std::to_string(std::min<std::size_t>(count, 9));
      }
    }
    return found;
  } catch (const InvalidArgument& refused) {
    std::string text = refused.what();
    std::erase_if(text, [](char letter) { return letter >= '0' && letter <= '9'; });
    return text;
  }
}

#ifndef NPUSIM_LIBFUZZER

// Writes pickles of protocol 4 as Python does: containers and texts go to the memo.
class Writer {
 public:
  explicit Writer(std::uint8_t protocol = 4) { put({0x80, protocol}); }
  Writer& text(std::string_view value) {
    put({0x8c, static_cast<std::uint8_t>(value.size())});
    out_.insert(out_.end(), value.begin(), value.end());
    return op(0x94);
  }
  Writer& number(std::uint64_t value) {
    put({0x8a, 8});
    for (int byte = 0; byte < 8; ++byte)
      out_.push_back(static_cast<std::uint8_t>(value >> 8 * byte));
    return *this;
  }
  Writer& op(std::uint8_t code) { return put({code}); }
  Writer& list() { return put({']', 0x94, '('}); }
  Writer& dict() { return put({'}', 0x94, '('}); }
  Writer& entry(std::string_view action, std::uint64_t address) {
    dict().text("action").text(action).text("addr").number(address).text("size").number(4096);
    text("stream").op('K').op(0).text("time_us").number(1700000000000000 + address);
    text("pool_id").op('K').op(0).op('K').op(0).op(0x86).text("frames").list();
    for (const char* name : {"forward", "step"}) {
      dict().text("filename").text("a.py").text("line").op('K').op(7).text("name").text(name);
      op('u');
    }
    return op('e').op('u');
  }
  Input done() { return op('.').out_; }

 private:
  Writer& put(std::initializer_list<std::uint8_t> bytes) {
    out_.insert(out_.end(), bytes);
    return *this;
  }
  Input out_;
};

Input good_snapshot() {
  Writer out;
  out.dict().text("segments").list().dict();
  out.text("device").op('K').op(0).text("address").number(1 << 20).text("total_size").number(9000);
  out.text("stream").op('K').op(0).text("segment_pool_id").op('K').op(0).op('K').op(0).op(0x86);
  out.text("blocks").list().dict().text("size").number(4096).text("state");
  out.text("active_allocated").text("frames").list().op('e').op('u').op('e').op('u').op('e');
  out.text("device_traces").list().list();
  for (std::uint64_t i = 0; i < 3; ++i) {
    out.entry("alloc", i << 20).entry("free_requested", i << 20).entry("free_completed", i << 20);
  }
  return out.op('e').op('e').op('u').done();
}

constexpr std::uint8_t kOpcodes[] = {'(',  'e',  'u',  's',  'a',  'h',  'j',  'q',  'r',
                                     0x94, '2',  '0',  '1',  ']',  '}',  't',  'l',  'd',
                                     0x85, 0x86, 0x87, 0x8a, 0x8d, 0x8e, 0x95, 0xff, 0,
                                     'X',  'B',  'J',  'N',  'G',  0x8b, 'c',  0x93, 'R'};

// Most inputs get past the first two bytes.
void repair(Input& input, std::mt19937_64& random) {
  if (input.size() < 2 || random() % 8 == 0) return;
  input[0] = 0x80;
  input[1] = static_cast<std::uint8_t>(2 + random() % 4);
}

#endif

}  // namespace

#ifdef NPUSIM_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_input(Input(data, data + size));
  return 0;
}

#else

#include "tests/native/check.h"

TEST(a_good_snapshot_is_read) {
  const Input good = good_snapshot();
  const SnapshotReader reader{ByteSource(good)};
  CHECK_EQ(reader.devices().size(), 1);
  const SnapshotTables tables = reader.tables(0);
  CHECK_EQ(tables.entries.op.size(), 9);
  CHECK_EQ(tables.entries.address[3], 1 << 20);
  CHECK_EQ(tables.entries.stack[8], 1);
  CHECK_EQ(tables.stacks.size(), 2);
  CHECK_EQ(tables.frames.size(), 2);
  CHECK_EQ(tables.blocks.address[0], 1 << 20);
}

TEST(no_bytes_break_the_reader) {
  fuzzing::fuzz(
      {.seed = 11, .rounds = 20000, .most_bytes = 8000, .letters = kOpcodes, .repair = repair},
      good_snapshot(), read_input);
}

#endif
