"""What a training has taken at a site so far, by the site's record."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from netfleet.privacy.receipts.lines import Line, Sent
from netfleet.privacy.receipts.record import RECORD_FILE, read_record
from netfleet.runs import checkpoint
from netfleet.sites.planning.folders import RUN_FOLDER


@dataclass(frozen=True)
class Done:
    """Rounds that are done, the seconds that they took at the pace of the site's messages, and the bytes of these.

    The time in which the site was down is in it. What a neighbour asked for again is not counted.
    """

    rounds: int
    seconds: float | None
    sent: int


def read_done(folder: Path) -> Done | None:
    """From a site's folder; None: it has not begun."""
    run = folder / RUN_FOLDER
    if not (folder / RECORD_FILE).is_file() or not checkpoint.exists(run):
        return None
    rounds, sent, begun = checkpoint.reached(run), 0, dict[int, datetime]()
    for line in read_record(folder):
        if isinstance(line, Line) and isinstance(line.entry, Sent) and line.entry.what == "message":
            begun.setdefault(line.entry.round, line.time)
            sent += line.entry.bytes * len(line.entry.to) if line.entry.round < rounds else 0
    if len(begun) < 2:
        return Done(rounds, None, sent)
    first, last = min(begun), max(begun)
    return Done(rounds, rounds * (begun[last] - begun[first]).total_seconds() / (last - first), sent)
