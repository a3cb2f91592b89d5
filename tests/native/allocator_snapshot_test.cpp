// SPDX-License-Identifier: BSD-3-Clause
// Whatever bytes a snapshot file holds, it is read or refused with a sentence, in memory bounded by
// its size. As a test the bytes are mutations of good files from fixed seeds, for a fixed number of
// rounds or for NPUSIM_FUZZ_SECONDS. Built with -DNPUSIM_LIBFUZZER -fsanitize=fuzzer it is a target
// of libFuzzer.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <set>
#include <string_view>

#include "allocator/error.h"
#include "allocator/replay/snapshot_reader.h"

using namespace npusim::alloc;

namespace {

using Input = std::vector<std::uint8_t>;

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

Input mutated(const std::vector<Input>& corpus, std::mt19937_64& random) {
  Input out = corpus[random() % corpus.size()];
  const auto place = [&] {
    return static_cast<std::ptrdiff_t>(out.empty() ? 0 : random() % out.size());
  };
  constexpr std::uint8_t kInteresting[] = {'(',  'e',  'u',  's',  'a',  'h',  'j',  'q',  'r',
                                           0x94, '2',  '0',  '1',  ']',  '}',  't',  'l',  'd',
                                           0x85, 0x86, 0x87, 0x8a, 0x8d, 0x8e, 0x95, 0xff, 0,
                                           'X',  'B',  'J',  'N',  'G',  0x8b, 'c',  0x93, 'R'};
  for (std::uint64_t times = random() % 5 + 1; times > 0; --times) {
    if (out.size() < 3) break;
    const auto at = place();
    switch (random() % 6) {
      case 0:
        out[static_cast<std::size_t>(at)] ^= static_cast<std::uint8_t>(1U << random() % 8);
        break;
      case 1:
        out[static_cast<std::size_t>(at)] = kInteresting[random() % std::size(kInteresting)];
        break;
      case 2:
        out.insert(out.begin() + at, kInteresting[random() % std::size(kInteresting)]);
        break;
      case 3:
        out.erase(out.begin() + at,
                  out.begin() + std::min(std::ssize(out), at + std::ptrdiff_t(random() % 16)));
        break;
      case 4: {
        const Input& other = corpus[random() % corpus.size()];
        const auto from = static_cast<std::ptrdiff_t>(random() % (other.size() + 1));
        out.insert(out.begin() + at, other.begin() + from, other.end());
        break;
      }
      default: {
        const Input part(out.begin() + at, out.begin() + std::min(std::ssize(out), at + 64));
        out.insert(out.begin() + place(), part.begin(), part.end());
      }
    }
  }
  if (out.size() > 8000) out.resize(8000);
  if (out.size() >= 2 && random() % 8 != 0) {  // most get past the first two bytes
    out[0] = 0x80;
    out[1] = static_cast<std::uint8_t>(2 + random() % 4);
  }
  return out;
}

void fuzz() {
  std::mt19937_64 random(11);
  std::vector<Input> corpus{good_snapshot()};
  std::set<std::string> seen;
  const char* seconds = std::getenv("NPUSIM_FUZZ_SECONDS");
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(seconds ? std::atoi(seconds) : 0);
  std::size_t rounds = 0;
  for (; rounds < 20000 || std::chrono::steady_clock::now() < end; ++rounds) {
    Input input = mutated(corpus, random);
    if (seen.insert(read_input(input)).second && corpus.size() < 2000) {
      corpus.push_back(std::move(input));
    }
  }
  if (seconds) std::printf("%zu inputs, %zu outcomes\n", rounds, seen.size());
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

TEST(no_bytes_break_the_reader) { fuzz(); }

#endif
