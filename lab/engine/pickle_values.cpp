// SPDX-License-Identifier: BSD-3-Clause
// Storage of pickled values. Nothing is given back before the end, so what is shared stays where it
// is.
#include "lab/engine/pickle_values.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "allocator/error.h"
#include "lab/engine/names.h"

namespace npusim::lab {
namespace {

constexpr std::size_t kLeastChunk = 256, kMostChunk = std::size_t{1} << 16;  // values
constexpr std::size_t kMostShared = 256;      // longer lists are not looked up
constexpr std::size_t kMostSharedFields = 4;  // of a dictionary; a frame has three
constexpr std::size_t kLeastRows = 4096, kMostRows = std::size_t{1} << 18;  // bytes of a chunk
constexpr std::int64_t kSmall = std::int64_t{1} << 59;
constexpr std::uint32_t kLong = std::uint32_t{1} << 31;

// A row while it is written; no field takes more than nine bytes.
struct RowWriter {
  std::array<std::uint8_t, 5 + 9 * PickleValues::kMostKeys> bytes;
  std::size_t length = 0;

  explicit RowWriter(std::uint32_t shape) {
    for (; shape >= 0x80; shape >>= 7) {
      bytes[length++] = static_cast<std::uint8_t>(shape | 0x80);
    }
    bytes[length++] = static_cast<std::uint8_t>(shape);
  }
  void add(PickleValue value) {
    const std::int64_t number = value.number();
    std::size_t count = 0;
    for (std::int64_t rest = number; rest != (rest < 0 ? -1 : 0); rest >>= 8) ++count;
    const bool reads_negative = count > 0 && (number >> (8 * count - 1) & 1) != 0;
    if (reads_negative != (number < 0)) ++count;
    bytes[length++] =
        static_cast<std::uint8_t>(static_cast<std::size_t>(value.kind()) | count << 4);
    std::memcpy(&bytes[length], &number, count);
    length += count;
  }
  std::string_view text() const {
    const void* begin = bytes.data();
    return {static_cast<const char*>(begin), length};
  }
};

std::uint32_t read_shape(const std::uint8_t*& row) {
  std::uint32_t shape = 0;
  for (int shift = 0;; shift += 7) {
    shape |= std::uint32_t{*row & 0x7FU} << shift;
    if ((*row++ & 0x80) == 0) return shape;
  }
}

PickleValue read_value(const std::uint8_t* at) {
  const std::size_t count = *at >> 4;
  std::int64_t number = 0;
  std::memcpy(&number, at + 1, count);
  if (count > 0 && count < 8) {
    const std::size_t shift = 64 - 8 * count;
    number = static_cast<std::int64_t>(static_cast<std::uint64_t>(number) << shift) >> shift;
  }
  return {static_cast<PickleValue::Kind>(*at & 15), number};
}

}  // namespace

PickleValues::PickleValues(std::span<const std::string_view> keys) {
  for (const std::string_view key : keys) make_text(key);
  for (std::size_t i = 0; i < keys.size(); ++i) key_by_text_[i] = static_cast<std::uint8_t>(i);
  shape_of(0);
}

PickleValue PickleValues::make_integer(std::int64_t value) {
  if (value >= -kSmall && value < kSmall) return {PickleValue::Kind::integer, value};
  if (value < 0) return {PickleValue::Kind::huge, 0};
  return make_wide(static_cast<std::uint64_t>(value));
}

PickleValue PickleValues::make_wide(std::uint64_t value) {
  if (value < static_cast<std::uint64_t>(kSmall)) {
    return {PickleValue::Kind::integer, static_cast<std::int64_t>(value)};
  }
  wides_.push_back(value);
  return {PickleValue::Kind::wide, static_cast<std::int64_t>(wides_.size()) - 1};
}

PickleValue PickleValues::make_text(std::string_view text) {
  const auto known = text_by_contents_.find(text);
  if (known != text_by_contents_.end()) return {PickleValue::Kind::text, known->second};
  const auto number = static_cast<std::int64_t>(texts_.size());
  texts_.emplace_back(text);
  text_by_contents_.emplace(texts_.back(), number);
  text_bytes_ += text.size() + 100;
  key_by_text_.push_back(kMostKeys);
  return {PickleValue::Kind::text, number};
}

PickleValue PickleValues::make_tuple(PickleItems items) {
  return {PickleValue::Kind::tuple, number_of(items)};
}

PickleValue PickleValues::make_list() {
  lists_.push_back(number_of({}));
  return {PickleValue::Kind::list, static_cast<std::int64_t>(lists_.size()) - 1};
}

PickleValue PickleValues::make_dict() {
  dicts_.push_back(nullptr);
  return {PickleValue::Kind::dict, static_cast<std::int64_t>(dicts_.size()) - 1};
}

void PickleValues::append(PickleValue list, PickleItems items) {
  if (items.empty()) return;
  std::uint32_t& number = lists_[index(list)];
  const PickleItems before = this->items(list);
  if (before.empty() && items.size() <= kMostShared) {
    number = number_of(items);
    return;
  }
  const std::size_t length = before.size() + items.size();
  if (length > std::numeric_limits<std::uint32_t>::max()) {
    throw InvalidArgument("a list has 2^32 or more entries");
  }
  if ((number & kLong) == 0) {
    LongList& fresh = long_lists_.emplace_back();
    reserve(fresh, length);
    std::copy(before.begin(), before.end(), fresh.items.get());
    number = kLong | static_cast<std::uint32_t>(long_lists_.size() - 1);
  }
  LongList& to = long_lists_[number & ~kLong];
  if (length > to.capacity) reserve(to, std::max(length, 2 * std::size_t{to.capacity}));
  std::copy(items.begin(), items.end(), to.items.get() + before.size());
  to.length = static_cast<std::uint32_t>(length);
}

// A long block of memory moves without a copy, and its end takes none before it is written.
void PickleValues::reserve(LongList& list, std::size_t capacity) {
  capacity = std::min<std::size_t>(capacity, std::numeric_limits<std::uint32_t>::max());
  PickleValue* const before = list.items.release();
  void* moved = std::realloc(before, capacity * sizeof(PickleValue));
  list.items.reset(moved ? static_cast<PickleValue*>(moved) : before);
  if (!moved) throw std::bad_alloc();
  long_values_ += capacity - list.capacity;
  list.capacity = static_cast<std::uint32_t>(capacity);
}

void PickleValues::set_items(PickleValue dict, PickleItems keys_and_values) {
  std::array<PickleValue, kMostKeys> found;
  std::uint32_t keys = 0;
  for (std::size_t i = 0; i + 1 < keys_and_values.size(); i += 2) {
    if (keys_and_values[i].kind() != PickleValue::Kind::text) continue;
    const std::size_t key = key_by_text_[index(keys_and_values[i])];
    if (key == kMostKeys) continue;
    keys |= std::uint32_t{1} << key;
    found[key] = keys_and_values[i + 1];
  }
  if (keys == 0) return;
  Row& to = dicts_[index(dict)];
  Row before = to;
  const std::uint32_t keys_before = before ? shapes_[read_shape(before)].keys : 0;
  RowWriter row(shape_of(keys | keys_before));
  std::size_t count = 0;
  for (std::size_t key = 0; key < kMostKeys; ++key) {
    const bool is_new = (keys >> key & 1) != 0;
    if (!is_new && (keys_before >> key & 1) == 0) continue;
    row.add(is_new ? found[key] : field(to, key));
    ++count;
  }
  to = kept(row.text(), count <= kMostSharedFields);
}

PickleItems PickleValues::items(PickleValue list_or_tuple) const {
  if (list_or_tuple.kind() == PickleValue::Kind::tuple) return tuples_[index(list_or_tuple)];
  const std::uint32_t number = lists_[index(list_or_tuple)];
  if ((number & kLong) == 0) return tuples_[number];
  const LongList& list = long_lists_[number & ~kLong];
  return {list.items.get(), list.length};
}

const void* PickleValues::contents(PickleValue dict) const { return dicts_[index(dict)]; }

PickleValue PickleValues::field(PickleValue dict, std::size_t key) const {
  return field(dicts_[index(dict)], key);
}

PickleValue PickleValues::field(Row row, std::size_t key) const {
  if (!row) return {};
  const Shape& shape = shapes_[read_shape(row)];
  if ((shape.keys >> key & 1) == 0) return {};
  for (std::size_t slot = shape.slot[key]; slot > 0; --slot) row += 1 + (*row >> 4);
  return read_value(row);
}

std::size_t PickleValues::bytes() const noexcept {
  return (chunk_values_ + long_values_) * sizeof(PickleValue) + row_bytes_ +
         (shared_.size() + shared_rows_.size()) * 64 + tuples_.size() * sizeof(PickleItems) +
         lists_.size() * 4 + long_lists_.size() * sizeof(LongList) + dicts_.size() * sizeof(Row) +
         wides_.size() * 8 + shapes_.size() * 100 + text_bytes_;
}

bool PickleValues::SameItems::operator()(const PickleItems& a, const PickleItems& b) const {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

std::size_t PickleValues::HashItems::operator()(const PickleItems& items) const {
  std::uint64_t hash = items.size();
  for (const PickleValue value : items) {
    hash = (hash ^ value.bits()) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

std::uint32_t PickleValues::number_of(PickleItems items) {
  const bool is_short = items.size() <= kMostShared;
  if (is_short) {
    const auto known = shared_.find(items);
    if (known != shared_.end()) return known->second;
  }
  const auto number = static_cast<std::uint32_t>(tuples_.size());
  if (number == kLong) throw InvalidArgument("2^31 different lists");
  tuples_.push_back(kept(items));
  if (is_short) shared_.emplace(tuples_.back(), number);
  return number;
}

PickleItems PickleValues::kept(PickleItems items) {
  const std::size_t count = std::max<std::size_t>(items.size(), 1);
  if (count > chunk_left_) {
    chunk_left_ = std::max(count, std::clamp(chunk_values_, kLeastChunk, kMostChunk));
    chunks_.push_back(std::make_unique_for_overwrite<PickleValue[]>(chunk_left_));
    chunk_values_ += chunk_left_;
    chunk_next_ = chunks_.back().get();
  }
  std::copy(items.begin(), items.end(), chunk_next_);
  chunk_left_ -= count;
  return {std::exchange(chunk_next_, chunk_next_ + count), items.size()};
}

PickleValues::Row PickleValues::kept(std::string_view row, bool is_shared) {
  if (is_shared) {
    const auto known = shared_rows_.find(row);
    if (known != shared_rows_.end()) {
      const void* begin = known->data();
      return static_cast<Row>(begin);
    }
  }
  if (row.size() > row_left_) {
    row_left_ = std::clamp(row_bytes_, kLeastRows, kMostRows);
    row_chunks_.push_back(std::make_unique_for_overwrite<std::uint8_t[]>(row_left_));
    row_bytes_ += row_left_;
    row_next_ = row_chunks_.back().get();
  }
  std::memcpy(row_next_, row.data(), row.size());
  row_left_ -= row.size();
  const void* begin = row_next_;
  if (is_shared) shared_rows_.emplace(static_cast<const char*>(begin), row.size());
  return std::exchange(row_next_, row_next_ + row.size());
}

std::uint32_t PickleValues::shape_of(std::uint32_t keys) {
  const auto number = static_cast<std::uint32_t>(shapes_.size());
  const auto [it, is_new] = shape_by_keys_.try_emplace(keys, number);
  if (is_new) {
    Shape shape{.keys = keys, .slot = {}};
    std::uint8_t next = 0;
    for (std::size_t key = 0; key < kMostKeys; ++key) {
      if (keys >> key & 1) shape.slot[key] = next++;
    }
    shapes_.push_back(shape);
  }
  return it->second;
}

}  // namespace npusim::lab
