// SPDX-License-Identifier: BSD-3-Clause
// Sites: where a program was when it launched a command, as a number that costs a walk of Python's
// frames. In a backward pass, whose thread has no Python frames, a site is the node of the graph
// and the place of its forward.
#pragma once

#include <pybind11/pybind11.h>

#include "backend/backend.h"

namespace torch_npusim {

// gather_site() returns the site of this thread. Takes the GIL if the thread has been in Python;
// call it without any lock then. Where it may not wait, frames are known only to a thread that has
// the GIL. 0: nothing is known, or the process is ending.
npusim::Site gather_site(bool may_wait) noexcept;

// want_sites() has sites gathered for as long as anybody wants them; nobody else pays for them.
enum class SiteUser : unsigned { races = 1, timeline = 2 };
void want_sites(SiteUser user, bool wanted) noexcept;

// site_dict() is {"frames": [(file, line, function), ...], innermost first, "node": name of the
// autograd node or None, "forward": [...], the frames of its forward}. Needs the GIL.
pybind11::dict site_dict(npusim::Site site);

}  // namespace torch_npusim
