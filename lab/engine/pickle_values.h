// SPDX-License-Identifier: BSD-3-Clause
// PickleValues: numbers, texts, lists and dictionaries of a pickle, kept small. Short lists and
// tuples with the same contents share them, dictionaries with the same keys share the keys, and of
// a dictionary only the keys that the reader asked for are kept.
#pragma once

#include <array>
#include <cstdint>
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
  struct List {
    const PickleValue* items = nullptr;
    PickleValue* own = nullptr;  // null: the items may be shared
    std::uint32_t length = 0;
    std::uint32_t capacity = 0;
  };
  struct Shape {
    std::uint32_t keys = 0;  // a bit per key
    std::array<std::uint8_t, kMostKeys> slot{};
  };
  struct Dict {
    const PickleValue* values = nullptr;
    std::uint32_t shape = 0;
  };
  struct SameItems {
    bool operator()(const PickleItems& a, const PickleItems& b) const;
  };
  struct HashItems {
    std::size_t operator()(const PickleItems& items) const;
  };

  static std::size_t index(PickleValue value) { return static_cast<std::size_t>(value.number()); }
  PickleValue* room_for(std::size_t values);
  PickleItems shared(PickleItems items);
  PickleItems kept(PickleItems items);
  std::uint32_t shape_of(std::uint32_t keys);

  std::vector<std::unique_ptr<PickleValue[]>> chunks_;
  std::size_t chunk_left_ = 0;
  std::size_t chunk_values_ = 0;  // of all chunks
  PickleValue* chunk_next_ = nullptr;

  std::unordered_set<PickleItems, HashItems, SameItems> shared_;
  std::unordered_map<const PickleValue*, std::int64_t> tuple_by_items_;
  std::deque<PickleItems> tuples_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::vector<Shape> shapes_;
  std::unordered_map<std::uint32_t, std::uint32_t> shape_by_keys_;
  std::deque<std::uint64_t> wides_;
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, std::int64_t> text_by_contents_;
  std::size_t text_bytes_ = 0;
  std::vector<std::uint8_t> key_by_text_;  // by text; kMostKeys: not asked for
};

}  // namespace npusim::lab
