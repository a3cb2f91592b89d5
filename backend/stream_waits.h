// SPDX-License-Identifier: BSD-3-Clause
// A listener hears of each wait of the host for one stream, before the wait, on the waiting thread
// and without any lock of backend/. A listener that throws prevents the wait.
#pragma once

namespace npusim {

class Stream;

using StreamWaitListener = void (*)(const Stream& stream);
void set_stream_wait_listener(StreamWaitListener listener) noexcept;  // nullptr: none

// wait_unheard() is stream.synchronize() as a part of a wait that the listener has heard of.
void wait_unheard(Stream& stream);

}  // namespace npusim
