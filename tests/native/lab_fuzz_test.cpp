// SPDX-License-Identifier: BSD-3-Clause
// Bytes become events and settings; whatever they are, the trace is refused with a sentence or
// replayed without a violation, on the caching allocator and on every policy.
//
// As a test it makes its own inputs (fuzz.h). Built with -DNPUSIM_LIBFUZZER -fsanitize=fuzzer it is
// a target of libFuzzer.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <random>

#include "allocator/error.h"
#include "lab/engine/policies.h"
#include "lab/engine/replay.h"
#include "tests/native/fuzz.h"

using namespace npusim::lab;

namespace {

using fuzzing::Input;

class Reader {
 public:
  explicit Reader(const Input& input) : input_(input) {}
  bool is_empty() const { return at_ >= input_.size(); }
  std::uint8_t byte() { return is_empty() ? 0 : input_[at_++]; }

 private:
  const Input& input_;
  std::size_t at_ = 0;
};

struct Columns {
  std::vector<std::uint8_t> op;
  std::vector<std::uint64_t> id, bytes;
  std::vector<std::uint32_t> stream, pool;

  void add(Op code, std::uint64_t id_in = 0, std::uint64_t bytes_in = 0,
           std::uint32_t stream_in = 0, std::uint32_t pool_in = 0) {
    op.push_back(static_cast<std::uint8_t>(code));
    id.push_back(id_in);
    bytes.push_back(bytes_in);
    stream.push_back(stream_in);
    pool.push_back(pool_in);
  }
  EventColumns spans() const { return {op, id, bytes, stream, pool, {}, {}}; }
};

// Events that make sense: what they free is live, what they use exists.
class Script {
 public:
  Columns read(Reader& in) {
    while (!in.is_empty() && out_.op.size() < 4000) add(in);
    return std::move(out_);
  }

 private:
  void add(Reader& in) {
    const int choice = in.byte() % 20;
    if (choice < 9 || (live_.empty() && choice < 15)) {
      const int exponent = in.byte() % 28;
      const std::uint64_t bytes = (std::uint64_t{1} << exponent) + (in.byte() << exponent) / 256;
      const std::uint32_t where = in.byte();
      const std::uint32_t pool = where / 4 % 4;
      out_.add(Op::malloc, next_, bytes, where % 3, users_[pool] > 0 ? pool : 0);
      live_.push_back(next_++);
    } else if (choice < 14) {
      out_.add(Op::free, take(live_, in.byte()));
    } else if (choice == 14) {
      waiting_.push_back(take(live_, in.byte()));
      out_.add(Op::free_requested, waiting_.back());
    } else if (choice == 15 && !waiting_.empty()) {
      out_.add(Op::free_completed, take(waiting_, in.byte()));
    } else if (choice == 16) {
      out_.add(Op::empty_cache, 0, 0, 0, in.byte() % 4);
    } else if (choice == 17) {
      out_.add(Op::synchronize);
    } else if (choice == 18) {
      out_.add(Op::memory_fraction, 0, std::uint64_t{in.byte()} << 24 | 0xffffff);
    } else if (choice == 19) {
      change_pool(in.byte());
    }
  }

  void change_pool(std::uint8_t byte) {
    const std::uint32_t pool = byte % 3 + 1;
    if (users_[pool] > 0 && byte >= 128) {
      out_.add(Op::release_pool, 0, 0, 0, pool);
      if (--users_[pool] == 0) users_[pool] = kEnded;
    } else if (users_[pool] >= 0) {
      out_.add(Op::create_pool, 0, users_[pool] > 0 ? 0 : byte / 3 % 4, 0, pool);
      ++users_[pool];
    }
  }

  static std::uint64_t take(std::vector<std::uint64_t>& ids, std::uint8_t byte) {
    std::swap(ids[byte % ids.size()], ids.back());
    const std::uint64_t id = ids.back();
    ids.pop_back();
    return id;
  }

  static constexpr int kEnded = -1;
  Columns out_;
  std::uint64_t next_ = 0;
  std::vector<std::uint64_t> live_, waiting_;
  std::array<int, 4> users_{};
};

// Events that mean nothing: every byte as it comes.
Columns nonsense(Reader& in) {
  Columns out;
  while (!in.is_empty() && out.op.size() < 4000) {
    const auto op = static_cast<Op>(in.byte() % 24);
    const std::uint64_t id = in.byte() % 8;
    const std::uint64_t bytes = std::uint64_t{in.byte()} << in.byte() % 64;
    out.add(op, id, bytes, in.byte() % 3, in.byte() % 3);
  }
  return out;
}

Config config_of(Reader& in) {
  constexpr const char* presets[] = {"npusim",   "cuda-2.13", "cuda-2.12", "cuda-2.11",
                                     "cuda-2.9", "cuda-2.4",  "ascend"};
  std::string settings = "fit:";
  settings += in.byte() % 4 == 0 ? "first" : "best";
  const std::uint8_t flags = in.byte();
  if ((flags & 1) != 0) settings += ",expandable_segments:True";
  if ((flags & 2) != 0) settings += ",max_split_size_mb:20";
  if ((flags & 4) != 0) settings += ",garbage_collection_threshold:0.4";
  if ((flags & 8) != 0) settings += ",roundup_power2_divisions:4";
  if ((flags & 16) != 0) settings += ",per_process_memory_fraction:0.6";
  if ((flags & 32) != 0) settings += ",oversize_rules_on_expandable:True";
  if ((flags & 64) != 0) settings += ",search_after_sync:False";
  return parse_config(preset(presets[in.byte() % 5]), settings);
}

// What an input did, coarsely: inputs that do something new are worth mutating.
std::uint64_t signature(const ReplayResult& result) {
  const auto bucket = [](std::uint64_t n) { return static_cast<std::uint64_t>(std::bit_width(n)); };
  std::uint64_t out = bucket(result.ooms.size());
  const Stats& stats = result.stats;
  for (const std::int64_t n :
       {stats.num_alloc_retries, stats.num_device_alloc, stats.num_device_free,
        stats.inactive_split[0].peak, stats.segment[0].peak, stats.oversize_segments.allocated}) {
    out = out * 41 + bucket(static_cast<std::uint64_t>(n));
  }
  return out * 3 + (result.peak_reserved.bytes > result.active_at_peak_reserved ? 1 : 0);
}

// Returns the signature; ends the program where something is wrong.
std::uint64_t run_input(const Input& input) {
  Reader in(input);
  const std::uint8_t kind = in.byte();
  const std::uint8_t device = in.byte();
  const Config config = config_of(in);
  const Columns columns = kind % 8 == 0 ? nonsense(in) : Script().read(in);
  try {
    const Trace trace(columns.spans());
    ReplayOptions options;
    options.device.capacity_bytes = (std::uint64_t{1} << (26 + device % 8)) + 12345;
    options.device.scatter_seed = device / 8 % 3;
    options.pending = static_cast<PendingMode>(device / 32 % 3);
    options.validate = true;
    options.validate_every = 16;
    options.pictures_at.push_back(device);
    ReplayResult result;
    const std::vector<PolicyName> policies = built_in_policies();
    const std::size_t choice = kind / 8 % (2 * policies.size());
    if (choice < policies.size()) {
      result = replay(
          trace,
          [&](ReplayDevice& on) { return make_policy(policies[choice].name, "", on, trace); },
          options);
    } else {
      result = replay(trace, config, options);
    }
    for (const std::string& text : result.violations.first)
      std::fprintf(stderr, "%s\n", text.c_str());
    if (result.violations.count > 0) std::abort();
    return signature(result) * 16 + choice;
  } catch (const InvalidArgument&) {
    return 0;  // refused, with a sentence
  }
}

}  // namespace

#ifdef NPUSIM_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  run_input(Input(data, data + size));
  return 0;
}

#else

#include "tests/native/check.h"

TEST(no_bytes_break_an_allocator) {
  std::mt19937_64 random(7);
  Input first(400);
  std::generate(first.begin(), first.end(), [&] { return static_cast<std::uint8_t>(random()); });
  fuzzing::fuzz({.seed = 7, .rounds = 2000, .most_bytes = 6000}, first, run_input);
}

#endif
