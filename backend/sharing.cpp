// SPDX-License-Identifier: BSD-3-Clause
// Locks are those of the open file (F_OFD_SETLK): each importer opens the file for itself. Receipts
// are 64-bit numbers in the file's tail, written by the exporter and cleared by the importer once
// it has its lock, so at every moment one of the two says that somebody has the block.
#include "backend/sharing.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "backend/error.h"
#include "backend/process.h"
#include "backend/reservation.h"

namespace npusim {

namespace {

constexpr std::uint64_t kSlots = kFileTailBytes / sizeof(std::uint64_t);

using Word = std::uint64_t;

// A receiver holds a lock on the file's bytes of a block for as long as it maps them. The kernel
// drops the lock with the process, so a receiver that is killed releases its blocks.
bool lock_bytes(int file, short how, std::uint64_t offset, std::uint64_t bytes) {
  struct flock lock{};
  lock.l_type = how;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = static_cast<off_t>(bytes);
  return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

bool locked_by_others(int file, std::uint64_t offset, std::uint64_t bytes) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = static_cast<off_t>(bytes);
  return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// --- the exporter's side
// --------------------------------------------------------------------------

struct Sent {
  SharedPages pages{};
  int device = 0;
  std::size_t bytes = 0;
  std::vector<std::pair<Word, Word>> on_the_way;  // slot, receipt
  void (*free)(void*) noexcept = nullptr;         // nullptr: this process uses the block itself
  void* context = nullptr;
};

struct Outbox {
  std::mutex mutex;  // guards the rest
  std::map<Address, Sent> sent;
  std::deque<Address> waiting;  // those with `free`, the oldest first
  struct Slots {
    std::vector<Word> free;
    Word fresh = 0;  // those from here on were never used
    Word receipts = 0;
  };
  std::map<int, Slots> slots;  // by device
};
Outbox& outbox() {
  static auto* made = new Outbox;  // leaked: storages are freed while the process exits
  return *made;
}

std::uint64_t place_of(int device, Word slot) { return file_tail(device) + slot * sizeof(Word); }

Word read_word(int file, std::uint64_t place) {
  Word word = 0;
  return pread(file, &word, sizeof word, static_cast<off_t>(place)) == sizeof word ? word : 0;
}
bool write_word(int file, std::uint64_t place, Word word) {
  return pwrite(file, &word, sizeof word, static_cast<off_t>(place)) == sizeof word;
}

// Forgets the messages that were received.
void look_for_receipts(Outbox& box, Sent& sent) {
  std::erase_if(sent.on_the_way, [&](const auto& message) {
    const auto& [slot, receipt] = message;
    if (read_word(sent.pages.file, place_of(sent.device, slot)) == receipt) return false;
    box.slots[sent.device].free.push_back(slot);
    return true;
  });
}

// A block is in use elsewhere while a message with it is on the way, or a receiver holds its lock.
bool others_have(Outbox& box, Sent& sent) {
  look_for_receipts(box, sent);
  return !sent.on_the_way.empty() ||
         locked_by_others(sent.pages.file, sent.pages.offset, sent.bytes);
}

// --- the importer's side
// --------------------------------------------------------------------------

using FileName = std::pair<std::uint64_t, std::uint64_t>;  // device and number, as stat() tells
using BlockName = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;  // with the offset

BlockName name_of(const SharedBlock& block) {
  return {block.file_device, block.file_id, block.offset};
}

}  // namespace

// An exporter's file, open as long as a block of it is mapped.
class ReceivedBlock::File {
 public:
  explicit File(const SharedBlock& block) {
    detail::check_file_limit(block.receipt_at + sizeof block.receipt);
    const std::string path = detail::join("/proc/", block.process, "/fd/", block.file);
    file_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
    const int why = errno;
    struct stat found{};
    if (file_ >= 0 && fstat(file_, &found) == 0 && found.st_dev == block.file_device &&
        found.st_ino == block.file_id) {
      return;
    }
    if (file_ >= 0) close(file_);
    NPUSIM_CHECK(file_ < 0 && why != ENOENT, "the process that sent this tensor (", block.process,
                 ") has ended before it was received; keep the sender until the receiver has it");
    throw InvalidArgument(
        detail::join("the device memory of process ", block.process, " cannot be opened (", path,
                     ": ", std::strerror(why),
                     "); processes that share device memory must be of one user on one host"));
  }
  ~File() { close(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const noexcept { return file_; }

 private:
  int file_;
};

namespace {

struct Inbox {
  struct Known {
    std::weak_ptr<ReceivedBlock> block;
    int mappings = 0;  // one is made while the one before it waits to end
  };
  std::mutex mutex;  // guards the rest; held while blocks are mapped and given up
  std::map<BlockName, Known> blocks;
  std::map<FileName, std::weak_ptr<void>> files;
};
Inbox& inbox() {
  static auto* made = new Inbox;  // leaked, as the outbox
  return *made;
}

void acknowledge(int file, const SharedBlock& block) {
  NPUSIM_CHECK(
      read_word(file, block.receipt_at) == block.receipt && write_word(file, block.receipt_at, 0),
      "this message was received before: send a tensor once to each process that is to "
      "have it");
}

}  // namespace

SharedBlock send_block(int device, Address address, std::size_t bytes) {
  const SharedPages pages = share_pages(device, address, bytes);
  struct stat file{};
  fstat(pages.file, &file);
  Outbox& box = outbox();
  const std::lock_guard lock(box.mutex);
  Sent& sent = box.sent[address];
  sent.pages = pages;
  sent.device = device;
  sent.bytes = bytes;
  look_for_receipts(box, sent);
  Outbox::Slots& slots = box.slots[device];
  Word slot = slots.fresh;
  if (!slots.free.empty()) {
    slot = slots.free.back();
    slots.free.pop_back();
  } else if (slot == kSlots) {
    throw OutOfMemory(detail::join(kSlots, " messages about memory of device ", device,
                                   " were sent and not received"));
  } else {
    ++slots.fresh;
  }
  const Word receipt = ++slots.receipts;
  const std::uint64_t receipt_at = place_of(device, slot);
  if (!write_word(pages.file, receipt_at, receipt)) {
    slots.free.push_back(slot);
    throw OutOfMemory(
        detail::join("the host keeps no receipt of a message: ", std::strerror(errno)));
  }
  sent.on_the_way.emplace_back(slot, receipt);
  return {getpid(),     pages.file, file.st_dev, file.st_ino, device,
          pages.offset, bytes,      receipt_at,  receipt};
}

void release_sent(Address address, void (*free)(void*) noexcept, void* context) noexcept {
  if (in_bad_fork()) return;
  Outbox& box = outbox();
  {
    const std::lock_guard lock(box.mutex);
    const auto found = box.sent.find(address);
    if (found != box.sent.end()) {
      if (others_have(box, found->second)) {
        found->second.free = free;
        found->second.context = context;
        box.waiting.push_back(address);
        return;
      }
      box.sent.erase(found);
    }
  }
  free(context);
}

std::size_t collect_sent(std::size_t most) noexcept {
  if (in_bad_fork()) return 0;
  Outbox& box = outbox();
  std::vector<Sent> over;
  {
    const std::lock_guard lock(box.mutex);
    for (std::size_t left = std::min(most, box.waiting.size()); left > 0; --left) {
      const Address address = box.waiting.front();
      box.waiting.pop_front();
      const auto found = box.sent.find(address);
      if (others_have(box, found->second)) {
        box.waiting.push_back(address);
      } else {
        over.push_back(std::move(found->second));
        box.sent.erase(found);
      }
    }
  }
  for (const Sent& sent : over) sent.free(sent.context);
  return over.size();
}

std::size_t held_by_others() {
  Outbox& box = outbox();
  const std::lock_guard lock(box.mutex);
  std::size_t held = 0;
  for (auto& [address, sent] : box.sent) held += others_have(box, sent) ? 1 : 0;
  return held;
}

std::shared_ptr<ReceivedBlock::File> ReceivedBlock::file_of(const SharedBlock& block) {
  auto fresh = std::make_shared<File>(block);  // fails where the sender has ended, rule M11
  std::weak_ptr<void>& known = inbox().files[{block.file_device, block.file_id}];
  auto file = std::static_pointer_cast<File>(known.lock());
  if (file == nullptr) known = file = std::move(fresh);
  return file;
}

ReceivedBlock::ReceivedBlock(const SharedBlock& block) : block_(block), file_(file_of(block)) {
  NPUSIM_CHECK(lock_bytes(file_->descriptor(), F_RDLCK, block.offset, block.bytes),
               "the host does not lock parts of files (F_OFD_SETLK: ", std::strerror(errno),
               "), without which device memory cannot be shared");
  Inbox::Known& known = inbox().blocks[name_of(block)];
  ++known.mappings;
  try {
    acknowledge(file_->descriptor(), block);
    const std::uint64_t first = block.offset / page_bytes() * page_bytes();
    skipped_ = block.offset - first;
    range_bytes_ = round_up(skipped_ + block.bytes, page_bytes());
    const int device = static_cast<int>(block.device);
    SegmentResult range = reserve_range(device, range_bytes_);
    if (range.status != SegmentResult::Status::ok) throw OutOfMemory(range.reason);
    range_ = range.address;
    map_file(device, range_, range_bytes_, file_->descriptor(), first);
  } catch (...) {
    give_up();
    throw;
  }
}

ReceivedBlock::~ReceivedBlock() { give_up(); }

void ReceivedBlock::give_up() noexcept {
  if (range_ != 0) release_range(static_cast<int>(block_.device), range_, range_bytes_);
  const auto known = inbox().blocks.find(name_of(block_));
  if (--known->second.mappings > 0) return;
  lock_bytes(file_->descriptor(), F_UNLCK, block_.offset, block_.bytes);
  inbox().blocks.erase(known);
}

std::shared_ptr<ReceivedBlock> receive_block(const SharedBlock& block) {
  check_device(static_cast<int>(block.device));
  Inbox& box = inbox();
  std::shared_ptr<ReceivedBlock> received;  // what it lets go of takes the lock
  const std::lock_guard lock(box.mutex);
  std::erase_if(box.files, [](const auto& file) { return file.second.expired(); });
  const auto known = box.blocks.find(name_of(block));
  if (known != box.blocks.end()) received = known->second.block.lock();
  if (received != nullptr) {
    acknowledge(received->file_->descriptor(), block);
    return received;
  }
  received.reset(new ReceivedBlock(block), [](ReceivedBlock* over) {
    if (in_bad_fork()) return;
    const std::lock_guard turn(inbox().mutex);
    delete over;
  });
  box.blocks[name_of(block)].block = received;
  return received;
}

void acknowledge_block(const SharedBlock& block) {
  check_not_forked();
  const std::lock_guard lock(inbox().mutex);
  acknowledge(ReceivedBlock::file_of(block)->descriptor(), block);
}

}  // namespace npusim
