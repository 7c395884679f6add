"""A site's log: one line for each event, for people or for machines.

Parts of the text come from whoever connects. So a line is bounded and has no control characters, and a rejection is
logged once for each sender and kind of reason, however often it happens; all of them are counted.
"""

import json
import math
import re
import sys
import threading
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, TextIO
from urllib.parse import unquote

from netfleet.runs.progress import Quiet

#: Characters of a text that are kept.
LONGEST = 300
#: Pairs of sender and kind of reason that are counted separately: per sender, and in total.
OF_ONE, IN_ALL = 20, 1000
OTHERS = ("others", "others")
_PEER = re.compile(r"\b(?:ipv4|ipv6):(?P<host>\[[^\]\s]*\]|[^\s:()\[\]]+):\d+")
_VARYING = re.compile(
    r"""(?<!\w)b?'(?:[^'\\]|\\.)*'  # what a peer said, quoted
    | (?<!\w)b?"(?:[^"\\]|\\.)*"
    | \b[0-9a-f]{8,}\b              # hashes
    | [-+]?\b\w*\d[\w.]*            # numbers, and words with numbers in them""",
    re.VERBOSE,
)


class Log:
    """Events of a site, from any thread."""

    def __init__(
        self, site: str, stream: TextIO | None = None, as_json: bool = False, neighbours: Collection[str] = ()
    ) -> None:
        """A rejection of one of the `neighbours` is a warning, since the training may wait for it."""
        self.site, self.as_json, self._neighbours = site, as_json, frozenset(neighbours)
        self.refusals: Counter[tuple[str, str]] = Counter()  # by sender and kind of reason
        self.lost = 0  # lines that could not be written
        self._stream = sys.stderr if stream is None else stream
        self._lock = threading.RLock()
        self._reasons: Counter[str] = Counter()  # by sender

    def event(self, what: str, *, level: str = "info", **fields: object) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": now, "level": level, "site": self.site, "event": what, **fields}
        line = {key: _clean(value) for key, value in line.items()}
        text = json.dumps(line) if self.as_json else _readable(line)
        with self._lock:
            try:
                self._stream.write(text + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # a full disk or a closed terminal must not end the training
                self.lost += 1

    def refused(self, who: str, why: str) -> None:
        """Something from `who` was rejected: logged the first time, always counted."""
        name = sender(who)
        pair = (name, kind_of_reason(why))
        with self._lock:
            pair, first = self._place(pair)
            self.refusals[pair] += 1
            if first:
                said = {"note": "further reasons are counted, not logged"} if pair[1] == OTHERS[1] else {}
                level = "warning" if name.partition(" (")[0] in self._neighbours else "info"
                self.event("refused", level=level, who=name, why=why, **said)

    def _place(self, pair: tuple[str, str]) -> tuple[tuple[str, str], bool]:
        """The pair under which a rejection is counted, and whether it is the first there."""
        if pair in self.refusals:
            return pair, False
        if self._reasons[pair[0]] >= OF_ONE:
            pair = (pair[0], OTHERS[1])
            return pair, pair not in self.refusals
        if len(self.refusals) >= IN_ALL:
            return OTHERS, OTHERS not in self.refusals
        self._reasons[pair[0]] += 1
        return pair, True


class Logged(Quiet):
    """A display for a site without a terminal: evaluations become events."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def record(self, record: dict[str, Any]) -> None:
        self.log.event("evaluated", **{key: value for key, value in record.items() if value is not None})


def sender(who: str) -> str:
    """The sender without its port, which differs for every connection: "lab (10.0.0.1)"."""
    host = _PEER.sub(lambda found: found["host"].strip("[]").removeprefix("::ffff:"), unquote(who, errors="replace"))
    return printable(host)


def kind_of_reason(why: str) -> str:
    """A reason without its numbers, hashes and quotations."""
    return printable(_VARYING.sub("…", why[: 10 * LONGEST]))


def _clean(value: object) -> object:
    """A value that JSON can represent."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return printable(str(value))


def printable(text: str) -> str:
    """A bounded text without line ends and without control characters that a terminal would obey."""
    kept = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return kept if kept.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in kept)


def _readable(line: dict[str, object]) -> str:
    time, level, site, event, *rest = line.items()
    said = " ".join(f"{key}={_quoted(str(value))}" for key, value in rest)
    return f"{time[1]} {level[1]:7} {site[1]}: {event[1]} {said}".rstrip()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=') else text
