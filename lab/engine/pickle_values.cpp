// SPDX-License-Identifier: BSD-3-Clause
// Storage of pickled values. Nothing is given back before the end, so what is shared stays where it
// is.
#include "lab/engine/pickle_values.h"

#include <algorithm>
#include <limits>

#include "allocator/error.h"
#include "lab/engine/names.h"

namespace npusim::lab {
namespace {

constexpr std::size_t kLeastChunk = 256, kMostChunk = std::size_t{1} << 16;  // values
constexpr std::size_t kMostShared = 256;      // longer lists are not looked up
constexpr std::size_t kMostSharedFields = 4;  // of a dictionary; a frame has three
constexpr std::int64_t kSmall = std::int64_t{1} << 59;

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
  const PickleItems stored = shared(items);
  const auto number = static_cast<std::int64_t>(tuples_.size());
  const auto [it, is_new] = tuple_by_items_.try_emplace(stored.data(), number);
  if (is_new) tuples_.push_back(stored);
  return {PickleValue::Kind::tuple, it->second};
}

PickleValue PickleValues::make_list() {
  lists_.emplace_back();
  return {PickleValue::Kind::list, static_cast<std::int64_t>(lists_.size()) - 1};
}

PickleValue PickleValues::make_dict() {
  dicts_.emplace_back();
  return {PickleValue::Kind::dict, static_cast<std::int64_t>(dicts_.size()) - 1};
}

void PickleValues::append(PickleValue list, PickleItems items) {
  List& to = lists_[index(list)];
  if (items.empty()) return;
  const std::size_t length = to.length + items.size();
  if (length > std::numeric_limits<std::uint32_t>::max()) {
    throw InvalidArgument("a list has 2^32 or more entries");
  }
  if (to.length == 0) {
    to.items = shared(items).data();
  } else {
    if (length > to.capacity) {
      const std::size_t capacity = std::min<std::size_t>(
          std::max<std::size_t>(2 * std::size_t{to.length}, length), ~std::uint32_t{0});
      PickleValue* room = room_for(capacity);
      std::copy_n(to.items, to.length, room);
      to.items = to.own = room;
      to.capacity = static_cast<std::uint32_t>(capacity);
    }
    std::copy(items.begin(), items.end(), to.own + to.length);
  }
  to.length = static_cast<std::uint32_t>(length);
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
  Dict& to = dicts_[index(dict)];
  const Shape before = shapes_[to.shape];
  const std::uint32_t shape = shape_of(keys | before.keys);
  std::array<PickleValue, kMostKeys> values;
  std::size_t count = 0;
  for (std::size_t key = 0; key < kMostKeys; ++key) {
    if (keys >> key & 1) {
      values[count++] = found[key];
    } else if (before.keys >> key & 1) {
      values[count++] = to.values[before.slot[key]];
    }
  }
  to = {(count <= kMostSharedFields ? shared({values.data(), count}) : kept({values.data(), count}))
            .data(),
        shape};
}

PickleItems PickleValues::items(PickleValue list_or_tuple) const {
  if (list_or_tuple.kind() == PickleValue::Kind::tuple) return tuples_[index(list_or_tuple)];
  const List& list = lists_[index(list_or_tuple)];
  return {list.items, list.length};
}

const void* PickleValues::contents(PickleValue dict) const { return dicts_[index(dict)].values; }

PickleValue PickleValues::field(PickleValue dict, std::size_t key) const {
  const Dict& from = dicts_[index(dict)];
  const Shape& shape = shapes_[from.shape];
  if ((shape.keys >> key & 1) == 0) return {};
  return from.values[shape.slot[key]];
}

std::size_t PickleValues::bytes() const noexcept {
  return chunk_values_ * sizeof(PickleValue) + shared_.size() * 64 + tuples_.size() * 80 +
         lists_.size() * sizeof(List) + dicts_.size() * sizeof(Dict) + wides_.size() * 8 +
         text_bytes_;
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

PickleValue* PickleValues::room_for(std::size_t values) {
  if (values > chunk_left_) {
    const std::size_t usual = std::clamp(chunk_values_, kLeastChunk, kMostChunk);
    const std::size_t size = std::max(values, usual);
    chunks_.push_back(std::make_unique_for_overwrite<PickleValue[]>(size));
    chunk_values_ += size;
    if (size > usual) return chunks_.back().get();  // the chunk before is still in use
    chunk_next_ = chunks_.back().get();
    chunk_left_ = size;
  }
  PickleValue* room = chunk_next_;
  chunk_next_ += values;
  chunk_left_ -= values;
  return room;
}

PickleItems PickleValues::shared(PickleItems items) {
  const bool is_short = items.size() <= kMostShared;
  if (is_short) {
    const auto known = shared_.find(items);
    if (known != shared_.end()) return *known;
  }
  const PickleItems stored = kept(items);
  if (is_short) shared_.insert(stored);
  return stored;
}

PickleItems PickleValues::kept(PickleItems items) {
  PickleValue* room = room_for(std::max<std::size_t>(items.size(), 1));
  std::copy(items.begin(), items.end(), room);
  return {room, items.size()};
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
