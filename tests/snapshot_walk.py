# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of a verdict beside a walk over the pickle that knows dictionaries and sums alone.

python tests/snapshot_walk.py FILE...    prints what `npusim-lab explain` says otherwise
"""

import pickle
import re
import subprocess
import sys
from bisect import bisect_right, insort
from collections import Counter

MIB = 1 << 20
NO_STACK = "(no stack was recorded)"


class Walk:
    """The memory of one device before an entry of its history, or at its end."""

    def __init__(self, snapshot, device, stop=None):
        entries = snapshot["device_traces"][device] if snapshot["device_traces"] else []
        self.next = entries[stop] if stop is not None and stop < len(entries) else None
        self.segments, self.blocks = {}, {}  # ends; bytes, bytes asked for, frames and "in use"
        for segment in (one for one in snapshot["segments"] if one["device"] == device):
            place = segment["address"]
            self.segments[place] = place + segment["total_size"]
            for block in segment["blocks"]:
                asked, frames = block.get("requested_size", block["size"]), block.get("frames", [])
                if block["state"] != "inactive":
                    in_use = block["state"] == "active_allocated"
                    self.blocks[place] = [block["size"], asked, frames, in_use]
                place += block["size"]
        for entry in reversed(entries):
            self._back(entry["action"], entry.get("addr"), entry["size"])
        self.starts = sorted(self.blocks)
        for place, block in self.blocks.items():
            block[0] = self._bytes(place, block[0])
        self.freed, self.most = 0, (self.in_use(), -1)
        self.most_asked = self.asked = sum(
            asked for _, asked, _, used in self.blocks.values() if used
        )
        use = self.most[0]
        for number, entry in enumerate(entries[:stop]):
            use += self._step(entry["action"], entry.get("addr"), entry["size"], entry)
            self.most = max(self.most, (use, number), key=lambda pair: pair[0])
            self.most_asked = max(self.most_asked, self.asked)
        self.reserved = sum(end - begin for begin, end in self.segments.items())

    def in_use(self, is_used=True):
        """Bytes in use, or those of blocks that wait for other streams."""
        return sum(bytes for bytes, _, _, used in self.blocks.values() if used == is_used)

    def _back(self, action, place, size):
        if action == "alloc":
            del self.blocks[place]
        elif action == "free_completed":
            self.blocks[place] = [-(-size // 512) * 512, size, [], False]
        elif action == "free_requested":
            self.blocks[place][3] = True
        elif action in ("segment_alloc", "segment_map"):
            self._cut(place, place + size)
        elif action in ("segment_free", "segment_unmap"):
            self._join(place, place + size, action == "segment_unmap")

    def _step(self, action, place, size, entry):
        if action == "alloc":
            bytes = self._bytes(place, -(-size // 512) * 512)
            self.blocks[place] = [bytes, size, entry.get("frames", []), True]
            insort(self.starts, place)
            self.asked += size
            return bytes
        if action == "free_requested":
            bytes, asked, *_ = self.blocks[place]
            self.blocks[place][3] = False
            self.asked -= asked
            return -bytes
        if action == "free_completed":
            self.freed += self.blocks.pop(place)[1]
            self.starts.remove(place)
        elif action in ("segment_alloc", "segment_map"):
            self._join(place, place + size, action == "segment_map")
        elif action in ("segment_free", "segment_unmap"):
            self._cut(place, place + size)
        return 0

    def _around(self, place):
        """Begin and end of the segment that has an address."""
        return next((pair for pair in self.segments.items() if pair[0] <= place < pair[1]), (0, 0))

    def _join(self, begin, end, is_mapped):
        """Adds a segment; pages that are mapped behind others are of their segment."""
        if is_mapped:
            end = self.segments.pop(end, end)
            begin = next((one for one, its_end in self.segments.items() if its_end == begin), begin)
        self.segments[begin] = end

    def _cut(self, begin, end):
        first, last = self._around(begin)
        del self.segments[first]
        self.segments |= {a: b for a, b in ((first, begin), (end, last)) if a < b}

    def _bytes(self, place, size):
        """A block keeps a rest of up to 1 MiB, which is not worth a block."""
        after = bisect_right(self.starts, place)
        rest = min([self._around(place)[1], *self.starts[after : after + 1]]) - place - size
        return size + rest if size > MIB and 0 < rest <= MIB else size

    def holes(self):
        """Bytes of free pieces, and those of segments without a block."""
        pieces, empty = [], 0
        for begin, end in self.segments.items():
            inside = [place for place in self.starts if begin <= place < end]
            edges = [begin, *(edge for p in inside for edge in (p, p + self.blocks[p][0])), end]
            gaps = [b - a for a, b in zip(edges[::2], edges[1::2], strict=True)]
            pieces += [gap for gap in gaps if gap]
            empty += 0 if inside else end - begin
        return pieces, empty

    def by_row(self, rows):
        """Bytes in use by row: a block is of the row whose line is innermost in its stack."""
        sums = dict.fromkeys(rows, 0)
        for bytes, _, frames, used in self.blocks.values():
            names = [f"{frame['name']} ({frame['filename']}:{frame['line']})" for frame in frames]
            depth = {}
            for row in rows:
                name, path = row.partition(" (")[::2]  # of files of the current directory the end
                of = [n.startswith(f"{name} (") and n.endswith(path) for n in names]
                depth |= {row: of.index(True)} if True in of else {}
            nodes = [row for row in rows if any(row.split(" of a b")[0] in name for name in names)]
            named = min(depth, key=depth.get) if depth else (nodes or [NO_STACK])[0]
            if used and named in sums and (depth or nodes or not frames):
                sums[named] += bytes
        return sums


def differences(text, snapshot, device):
    """How many numbers of a printed verdict were compared, and those the walk has otherwise."""
    size = r"([\d.]+) (MiB|bytes)"
    failure = re.search(r"Event (\d+)(?: of the file| asks|,)", text)
    peak = re.search(r"At the peak of use, event (\d+)", text)
    walk = Walk(
        snapshot, device, int(failure[1]) if failure else int(peak[1]) + 1 if peak else None
    )
    (pieces, _), use, compared = walk.holes(), walk.in_use(), 0
    free, waits = sum(pieces), walk.in_use(False)
    found = []
    if failure:
        asked, left = walk.next["size"], walk.next.get("device_free", 0)
        checks = [
            (r"asks for SIZE on a device of SIZE with SIZE in", asked, walk.reserved + left, use),
            (r"SIZE are reserved, SIZE of that", walk.reserved, walk.reserved - use - waits),
            (r"free in (\d+)() hole", len(pieces)),
            (r", and SIZE are left on the device", left),
            (r"SIZE are missing", use + waits + asked - walk.reserved - left),
            (r"the largest hole is SIZE", max(pieces, default=0)),
            (r"SIZE are free together", free + left),
            (r"SIZE are asked for beside SIZE in use", asked, use),
            (r"\. SIZE are in use, and SIZE were freed before", use, walk.freed),
            (
                r"The peak of use was before, at event (\d+)(), with SIZE",
                walk.most[1],
                walk.most[0],
            ),
            (r"at least SIZE are live at once", max(walk.most_asked, walk.asked + asked)),
        ]
        found += [] if walk.next["action"] == "oom" else [f"entry {failure[1]} is no failure"]
    elif peak:
        whole, at = Walk(snapshot, device), re.search(r"are reserved at event (\d+)", text)
        then = Walk(snapshot, device, int(at[1]) + 1)
        pieces, empty = then.holes()
        checks = [
            (r"peak of use, event (\d+).*?()SIZE of blocks", whole.most[1], whole.most[0]),
            (r"SIZE are reserved at.*?with SIZE in", then.reserved, then.in_use()),
            (r"SIZE, \d+ %, is free then", sum(pieces)),
            (r"SIZE in holes beside", sum(pieces) - empty),
            (r"SIZE in segments without", empty),
            (r"at least SIZE are live at once", whole.most_asked),
        ]
    else:
        checks = [(r"SIZE are reserved, and SIZE of blocks are in use", walk.reserved, use)]
        checks += [(r"SIZE, \d+ % of it, is free but kept", free)]
    for pattern, *walked in checks:
        said = re.search(pattern.replace("SIZE", size), text)
        pairs = zip(said.groups()[::2], said.groups()[1::2], walked, strict=True) if said else ()
        for value, unit, number in pairs:
            scale, compared = MIB if unit == "MiB" else 1, compared + 1
            if abs(float(value) * scale - number) > 0.06 * scale:
                found.append(f"{said[0]}: {number / scale:.6g} walked")
    rows = re.findall(rf"^  {size}(?: in \d+ blocks)?, .*\n    (\S.*)$", text, re.M)
    sums, said = walk.by_row([row for *_, row in rows]), {}
    for value, unit, row in rows:
        said[row] = said.get(row, 0) + float(value) * (MIB if unit == "MiB" else 1)
    rest = use - sum(said.values())  # of rows that are not printed
    for row, bytes in said.items():
        if not -0.1 * MIB <= sums[row] - bytes <= rest + 0.1 * MIB:
            found.append(f"{bytes / MIB:.6g} MiB by {row}: {sums[row] / MIB:.6g} walked")
    return compared + len(said), found


def main():
    """Compares files of the command line."""
    for path in sys.argv[1:]:
        command = ["npusim-lab", "explain", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        with open(path, "rb") as file:
            snapshot = pickle.load(file)
        size = Counter(segment["device"] for segment in snapshot["segments"])
        for number, trace in enumerate(snapshot["device_traces"]):
            failed = any(entry["action"] == "oom" for entry in trace)
            size[number] += len(trace) + failed * 10**9
        ((device, _),) = size.most_common(1)
        first = done.stderr.strip() or done.stdout.split("\n")[0]
        count, found = differences(done.stdout, snapshot, device)
        print(f"{path}: {len(found)} of {count} differ. {first}", *found, sep="\n    ")


if __name__ == "__main__":
    main()
