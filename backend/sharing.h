// SPDX-License-Identifier: BSD-3-Clause
// Blocks of device memory in several processes. The exporter's pages lie in a file without a name
// (share_pages()); an importer opens it through /proc, as the ranks of a group do, and maps the
// block at addresses of its own (rules M9-M12).
//
//   exporter     send_block() ---- SharedBlock, as bytes ---->  receive_block()     importer
//                release_sent()  <--- receipt, lock on the bytes in the file ---
//
// Invariant: a process that maps a block holds a read lock on its bytes in the file, which the
// kernel releases however the process ends; a message that was not received has its receipt in the
// file's tail. A block with neither belongs to its exporter alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/memory.h"

namespace npusim {

// SharedBlock is the message to an importer: plain numbers, valid for one receive_block().
struct SharedBlock {
  std::int64_t process, file;          // the exporter, and its descriptor
  std::uint64_t file_device, file_id;  // of the file: descriptor numbers are reused
  std::int64_t device;
  std::uint64_t offset, bytes;        // of the block in the file
  std::uint64_t receipt_at, receipt;  // where the importer acknowledges, and what it finds there
};

// send_block() makes a message about `bytes` at `address`, which counts as sent. The caller has
// waited for the work on them. Throws as share_pages() does, and OutOfMemory at a million unread
// messages.
SharedBlock send_block(int device, Address address, std::size_t bytes);

// release_sent() calls free(context) once no other process has the block and no message about it is
// unread: at once, or in a later collect_sent(). Does nothing in a forked child.
void release_sent(Address address, void (*free)(void*) noexcept, void* context) noexcept;

// collect_sent() looks at up to `most` of the blocks that wait for other processes, the longest
// waiting first, frees those that no process has any more, and returns their number.
std::size_t collect_sent(std::size_t most = SIZE_MAX) noexcept;

// held_by_others() is the number of blocks of this process that others have or may still receive.
std::size_t held_by_others();

// ReceivedBlock is the mapping in an importer; its destructor gives the block up. The caller has
// waited for the work on it.
class ReceivedBlock {
 public:
  ~ReceivedBlock();
  ReceivedBlock(const ReceivedBlock&) = delete;
  ReceivedBlock& operator=(const ReceivedBlock&) = delete;

  Address address() const noexcept { return range_ + skipped_; }
  std::size_t bytes() const noexcept { return block_.bytes; }

 private:
  class File;
  friend std::shared_ptr<ReceivedBlock> receive_block(const SharedBlock& block);
  friend void acknowledge_block(const SharedBlock& block);
  explicit ReceivedBlock(const SharedBlock& block);
  static std::shared_ptr<File> file_of(const SharedBlock& block);
  void give_up() noexcept;

  const SharedBlock block_;
  const std::shared_ptr<File> file_;
  Address range_ = 0;
  std::size_t range_bytes_ = 0, skipped_ = 0;
};

// receive_block() maps the block, or answers with the mapping that this process has of it. Throws
// InvalidArgument: the exporter has ended, the message was received before, this process has no
// such device, or the host lets no process see another's files. Throws OutOfMemory where there is
// no room for the mapping; the message counts as received then.
std::shared_ptr<ReceivedBlock> receive_block(const SharedBlock& block);

// acknowledge_block() acknowledges a message about a block that is already mapped here. Throws
// InvalidArgument if the message was received before.
void acknowledge_block(const SharedBlock& block);

}  // namespace npusim
