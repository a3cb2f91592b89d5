// SPDX-License-Identifier: BSD-3-Clause
// PickleValues: numbers, texts, lists and dictionaries of a pickle, kept small. Short lists and
// tuples with the same contents share them, dictionaries with the same keys share the keys, and of
// a dictionary only the keys that the reader asked for are kept, in as many bytes as they need.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace npusim::lab {

// A value is its kind and a number: the integer itself, or where the contents are.
class PickleValue {
 public:
  enum class Kind : std::uint8_t {
    missing,  // a dictionary has no such key
    none,
    boolean,
    integer,  // -2^59 to 2^59 - 1
    wide,     // from there to 2^64 - 1
    huge,     // any other integer; its value is not kept
    real,     // nor are these two
    bytes,
    text,
    tuple,
    list,
    dict,
  };

  PickleValue() = default;
  PickleValue(Kind kind, std::int64_t number)
      : bits_(static_cast<std::uint64_t>(number) << 4 | static_cast<std::uint64_t>(kind)) {}

  Kind kind() const noexcept { return static_cast<Kind>(bits_ & 15); }
  std::int64_t number() const noexcept { return static_cast<std::int64_t>(bits_) >> 4; }
  std::uint64_t bits() const noexcept { return bits_; }
  bool operator==(const PickleValue&) const = default;

 private:
  std::uint64_t bits_ = 0;
};

using PickleItems = std::span<const PickleValue>;

class PickleValues {
 public:
  static constexpr std::size_t kMostKeys = 32;

  // `keys` are the texts that a dictionary is asked for, at most kMostKeys; field() takes their
  // positions.
  explicit PickleValues(std::span<const std::string_view> keys);

  PickleValue make_integer(std::int64_t value);
  PickleValue make_wide(std::uint64_t value);
  PickleValue make_text(std::string_view text);
  PickleValue make_tuple(PickleItems items);
  PickleValue make_list();
  PickleValue make_dict();
  void append(PickleValue list, PickleItems items);
  void set_items(PickleValue dict, PickleItems keys_and_values);  // later keys replace earlier ones

  std::string_view text(PickleValue text) const { return texts_[index(text)]; }
  std::uint64_t wide(PickleValue wide) const { return wides_[index(wide)]; }
  PickleItems items(PickleValue list_or_tuple) const;
  PickleValue field(PickleValue dict, std::size_t key) const;
  // contents() is the same for small dictionaries with equal fields.
  const void* contents(PickleValue dict) const;
  std::size_t bytes() const noexcept;  // of memory, about

 private:
  struct Free {
    void operator()(PickleValue* items) const { std::free(items); }
  };
  struct LongList {
    std::unique_ptr<PickleValue, Free> items;
    std::uint32_t length = 0;
    std::uint32_t capacity = 0;
  };
  struct Shape {
    std::uint32_t keys = 0;  // a bit per key
    std::array<std::uint8_t, kMostKeys> slot{};
  };
  // The number of its shape, in groups of seven bits; then each field: its kind, the length of its
  // number, the number.
  using Row = const std::uint8_t*;
  struct SameItems {
    bool operator()(const PickleItems& a, const PickleItems& b) const;
  };
  struct HashItems {
    std::size_t operator()(const PickleItems& items) const;
  };

  static std::size_t index(PickleValue value) { return static_cast<std::size_t>(value.number()); }
  std::uint32_t number_of(PickleItems items);  // in tuples_
  PickleItems kept(PickleItems items);
  void reserve(LongList& list, std::size_t capacity);
  Row kept(std::string_view row, bool is_shared);
  std::uint32_t shape_of(std::uint32_t keys);
  PickleValue field(Row row, std::size_t key) const;

  std::vector<std::unique_ptr<PickleValue[]>> chunks_;
  std::size_t chunk_left_ = 0;
  std::size_t chunk_values_ = 0;  // of all chunks
  PickleValue* chunk_next_ = nullptr;

  std::unordered_map<PickleItems, std::uint32_t, HashItems, SameItems> shared_;  // in tuples_
  std::deque<PickleItems> tuples_;
  std::deque<std::uint32_t> lists_;  // in tuples_, or kLong and in long_lists_
  std::deque<LongList> long_lists_;
  std::size_t long_values_ = 0;  // of all of them

  std::vector<std::unique_ptr<std::uint8_t[]>> row_chunks_;
  std::size_t row_left_ = 0;
  std::size_t row_bytes_ = 0;
  std::uint8_t* row_next_ = nullptr;
  std::unordered_set<std::string_view> shared_rows_;
  std::deque<Row> dicts_;  // null: empty
  std::vector<Shape> shapes_;
  std::unordered_map<std::uint32_t, std::uint32_t> shape_by_keys_;
  std::deque<std::uint64_t> wides_;
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, std::int64_t> text_by_contents_;
  std::size_t text_bytes_ = 0;
  std::vector<std::uint8_t> key_by_text_;  // by text; kMostKeys: not asked for
};

}  // namespace npusim::lab
