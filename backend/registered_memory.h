// SPDX-License-Identifier: BSD-3-Clause
// Host memory of the program's own that counts as pinned, as after cudaHostRegister().
#pragma once

#include <cstddef>

namespace npusim {

// pinned_register() makes it so; false if some of it is pinned already. pinned_unregister() takes
// that back; false if no memory was registered there.
bool pinned_register(void* pointer, std::size_t bytes);
bool pinned_unregister(void* pointer);

}  // namespace npusim
