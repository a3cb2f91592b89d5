// SPDX-License-Identifier: BSD-3-Clause
// ByteSource: the bytes of a file or of memory, one piece after the other; a file is never held as
// a whole.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace npusim::lab {

class ByteSource {
 public:
  explicit ByteSource(std::span<const std::uint8_t> memory);
  // open_file() throws std::system_error where the file cannot be opened, and InvalidArgument
  // where it is a pipe, a folder or a device: nothing waits for a writer.
  static ByteSource open_file(const std::string& path);

  std::uint64_t size() const noexcept { return size_; }
  std::uint64_t position() const noexcept { return before_ + next_; }
  std::uint64_t left() const noexcept { return size_ - position(); }
  bool is_at_end() const noexcept { return left() == 0; }

  // Both need so many bytes to be left. take() is valid until the next call.
  std::uint8_t byte() {
    if (next_ == have_.size()) refill(1);
    return have_[next_++];
  }
  const std::uint8_t* take(std::size_t count) {
    if (have_.size() - next_ < count) refill(count);
    next_ += count;
    return have_.data() + next_ - count;
  }
  void skip(std::uint64_t count);
  void rewind();  // to the first byte

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void refill(std::size_t count);

  std::unique_ptr<std::FILE, Close> file_;
  std::vector<std::uint8_t> buffer_;
  std::span<const std::uint8_t> have_;
  std::size_t next_ = 0;      // in have_
  std::uint64_t before_ = 0;  // bytes before have_
  std::uint64_t size_ = 0;
};

}  // namespace npusim::lab
