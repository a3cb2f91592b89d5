// SPDX-License-Identifier: BSD-3-Clause
// Reading a file in pieces of a mebibyte, or of one value where that is longer.
#include "lab/engine/byte_source.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "allocator/error.h"
#include "lab/engine/names.h"

namespace npusim::lab {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

}  // namespace

ByteSource::ByteSource(std::span<const std::uint8_t> memory)
    : have_(memory), size_(memory.size()) {}

ByteSource ByteSource::open_file(const std::string& path) {
  namespace fs = std::filesystem;
  // Before opening: a pipe would wait for a writer.
  const fs::file_type type = fs::status(path).type();
  if (type != fs::file_type::regular && type != fs::file_type::not_found) {
    throw InvalidArgument(std::string("is ") +
                          (type == fs::file_type::fifo        ? "a pipe"
                           : type == fs::file_type::directory ? "a folder"
                           : type == fs::file_type::socket    ? "a socket"
                                                              : "a device") +
                          "; expected a regular file");
  }
  ByteSource source({});
  source.file_.reset(std::fopen(path.c_str(), "rb"));
  if (!source.file_) throw std::system_error(errno, std::generic_category(), path);
  source.size_ = fs::file_size(path);
  std::setvbuf(source.file_.get(), nullptr, _IONBF, 0);
  return source;
}

void ByteSource::skip(std::uint64_t count) {
  while (count > 0) {
    const auto piece = static_cast<std::size_t>(std::min<std::uint64_t>(count, kPiece));
    take(piece);
    count -= piece;
  }
}

void ByteSource::rewind() {
  before_ = 0;
  next_ = 0;
  if (!file_) return;
  if (std::fseek(file_.get(), 0, SEEK_SET) != 0) {
    throw std::system_error(errno, std::generic_category(), "reading the file again");
  }
  have_ = {};
}

// What is left of the buffer moves to its beginning; then it is filled up.
void ByteSource::refill(std::size_t count) {
  const std::size_t kept = have_.size() - next_;
  const auto most =
      static_cast<std::size_t>(std::min<std::uint64_t>(left(), std::max(kPiece, count)));
  if (buffer_.size() < most) {
    std::vector<std::uint8_t> larger(most);
    std::copy_n(have_.begin() + static_cast<std::ptrdiff_t>(next_), kept, larger.begin());
    buffer_.swap(larger);
  } else {
    std::copy_n(have_.begin() + static_cast<std::ptrdiff_t>(next_), kept, buffer_.begin());
  }
  before_ += next_;
  next_ = 0;
  const std::size_t got =
      file_ ? std::fread(buffer_.data() + kept, 1, most - kept, file_.get()) : 0;
  have_ = {buffer_.data(), kept + got};
  if (kept + got < count) throw std::system_error(EIO, std::generic_category(), "the file shrank");
}

}  // namespace npusim::lab
