"""What receipts cost in a round: `python -m benchmarks.receipts`.

Two sites in one process do what sites do about receipts in a round, without a network and without training. The sender
hashes its message, records it (one fsync) and signs. The neighbour hashes what it got, verifies, signs and records. The
sender verifies and records the receipt. Both sync before their checkpoint.
"""

import hashlib
import io
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from netfleet.engines.host import Tag
from netfleet.privacy.receipts.record import RECORD_FILE
from netfleet.privacy.receipts.state import Key
from netfleet.runs.config import experiment
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.network.receipt_format import unpack_receipts
from netfleet.sites.network.wire import Expected
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.planning.nodes_file import NodeEntry, NodesFile
from netfleet.sites.planning.plan import make_plan
from netfleet.sites.planning.plan_files import write_plan
from netfleet.sites.runtime.receipts import SiteReceipts

#: Numbers of a message, rounds, and the first of them.
SIZES = {"10 thousand float32": (10_000, 200, 0), "10 million float32": (10_000_000, 20, 1000)}
NAMES = ("a", "b")
TABLE = {
    "rounds": 5,
    "topology": {"kind": "path", "workers": 2},
    "problem": {"kind": "quadratics"},
    "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05}],
}


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".") as place:  # a disk as sites have it, not one in memory
        folders = [Path(place) / "plan" / name for name in NAMES]
        _plan(Path(place) / "plan")
        a, b = (_site(folder) for folder in folders)
        for size, (d, rounds, first) in SIZES.items():
            before = _size(folders)
            found = _measure(a, b, d, range(first, first + rounds))
            print(f"\n{size}, {rounds} rounds: median (least) in milliseconds")
            for what, seconds in found.items():
                print(f"  {1000 * statistics.median(seconds):8.3f} ({1000 * min(seconds):8.3f})  {what}")
            print(
                f"  {(_size(folders) - before) / rounds:.0f} bytes of record in a round, for a message and its receipt"
            )


def _plan(folder: Path) -> None:
    whole, port = experiment(TABLE), 7400
    nodes = NodesFile(tuple(NodeEntry(name, f"127.0.0.1:{port + i}") for i, name in enumerate(NAMES)), 0.0)
    write_plan(make_plan(whole, nodes), folder, whole, nodes)


def _site(folder: Path) -> SiteReceipts:
    site, _ = load_site(folder)
    made = SiteReceipts(folder, site, load_identity(folder, site.name), Log(site.name, io.StringIO()))
    made.open()
    return made


def _size(folders: list[Path]) -> int:
    return sum((folder / RECORD_FILE).stat().st_size for folder in folders)


def _measure(a: SiteReceipts, b: SiteReceipts, d: int, rounds: range) -> dict[str, list[float]]:
    values, outbox, found = torch.randn(d).view(torch.uint8), Outbox(), defaultdict[str, list[float]](list)

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        found[what].append(time.perf_counter() - begun)

    for t in rounds:
        tag, message = Tag(t, 0), outbox.copy("float32", values)
        with timed("SHA-256 of a message alone"):
            hashlib.sha256(values.numpy().data).hexdigest()
        with timed("sender, once, before the message can leave: hash, line, fsync"):
            a.offer_to_all(tag, message, ["b"])
        with timed("sender, for each neighbour that asks: look up; sign once"):
            note = a.offer("b", Key("message", *tag), message)
        expected = Expected(b"", 0, *tag, message.words, message.data.numel())
        with timed("receiver, for each message: hash, verify, sign, line"):
            b.received("a", "message", expected, message.data.numpy().data, note)
        with timed("sender, for each receipt: verify, line"):
            a.take("b", unpack_receipts(b.to_give("a")))
        with timed("each site, before its checkpoint: fsync"):
            a.sync()
        b.sync()
    return dict(found)


if __name__ == "__main__":
    main()
