// SPDX-License-Identifier: BSD-3-Clause
// read_pickle(): what a pickle of protocol 2 to 5 holds, if that is numbers, texts, bytes, None,
// lists, tuples and dictionaries. No opcode that looks up a name, calls, or builds an object is
// known here, so no pickle can run code; it is refused with the name of the opcode.
//
// Any bytes are read in time and memory proportional to their number, or refused.
#pragma once

#include "lab/engine/byte_source.h"
#include "lab/engine/pickle_values.h"

namespace npusim::lab {

// Values go to `values`; the result is the outermost one. Throws InvalidArgument, which says at
// which byte, or std::system_error if the file cannot be read.
PickleValue read_pickle(ByteSource& source, PickleValues& values);

}  // namespace npusim::lab
