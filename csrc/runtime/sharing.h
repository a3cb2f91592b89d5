// SPDX-License-Identifier: BSD-3-Clause
// Storages in several processes: what torch's reductions need of backend/sharing.h.
#pragma once

#include <c10/core/StorageImpl.h>

#include "backend/sharing.h"

namespace torch_npusim {

// send_storage() puts a message about the storage's block on its way; the block then lives until
// nobody has it any more, however long the storage does. A storage without bytes is not sent.
// Waits, in virtual time, for the current stream. Raises for a storage that came from another
// process, as torch.cuda does, and for memory that is not the allocator's.
npusim::SharedBlock send_storage(c10::StorageImpl& storage);

// receive_storage() is a storage of `bytes` over the sender's block that cannot be resized.
c10::intrusive_ptr<c10::StorageImpl> receive_storage(const npusim::SharedBlock& block,
                                                     std::size_t bytes);

}  // namespace torch_npusim
