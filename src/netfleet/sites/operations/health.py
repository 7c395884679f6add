"""A site's sign of life: a file that it renews while its network thread answers, and the check that reads it.

The check needs no key, port or neighbour, and imports little, so that a container may run it every minute. A site that
waits for a neighbour is healthy: to start it again would not help.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from netfleet.errors import ConfigError, NetfleetError
from netfleet.files import write_atomically

if TYPE_CHECKING:
    from netfleet.sites.network.loop_thread import LoopThread
    from netfleet.sites.operations.status import SiteStatus

HEALTH_FILE = "health.json"
#: Seconds between two signs of life, and after which the last one is too old.
INTERVAL, OLD = 10.0, 60.0


class Health(NamedTuple):
    """Whether a site is healthy, and why in a sentence."""

    good: bool
    why: str


@contextmanager
def signs_of_life(
    folder: Path, loop: "LoopThread", status: Callable[[], "SiteStatus"], interval: float = INTERVAL
) -> Iterator[None]:
    """Within the context the site shows that it is alive, as long as its network thread answers and its disk works."""
    ended, path = threading.Event(), folder / HEALTH_FILE
    thread = threading.Thread(target=_show, args=(path, loop, status, interval, ended), name="health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5)
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _show(
    path: Path, loop: "LoopThread", status: Callable[[], "SiteStatus"], interval: float, ended: threading.Event
) -> None:
    while not ended.is_set():
        with suppress(NoAnswer, NetfleetError):  # the file then becomes old
            _write(path, loop.start(_asked(status)).result(timeout=interval))
        ended.wait(interval)


def _write(path: Path, status: "SiteStatus") -> None:
    about = {"site": status.site, "state": status.state, "round": status.round, "rounds": status.rounds}
    heard = {link.name: link.heard for link in status.neighbours if link.there and not link.silent}
    text = json.dumps({"time": time.time(), **about, "heard": heard}).encode()
    write_atomically(path, lambda file: file.write(text))


async def _asked(status: Callable[[], "SiteStatus"]) -> "SiteStatus":
    return status()


def in_touch(folder: Path, now: float | None = None) -> frozenset[str]:
    """The neighbours that the site which runs in a folder reaches, as its last sign of life says."""
    try:
        table = json.loads((folder / HEALTH_FILE).read_bytes())
        age = (time.time() if now is None else now) - float(table["time"])
        heard = {str(name): seconds for name, seconds in table["heard"].items() if seconds is not None}
        return frozenset(name for name, seconds in heard.items() if age + float(seconds) <= OLD)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return frozenset()  # no sign of life, or of an earlier version


def check_health(folder: Path, now: float | None = None) -> Health:
    """Whether the site in a folder is healthy; `now` is the time, in seconds since 1970."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; give that of a site, as netfleet plan made it")
    try:
        table = json.loads((folder / HEALTH_FILE).read_bytes())
        age = (time.time() if now is None else now) - float(table["time"])
        seen = f"{table['state']}, round {table['round']} of {table['rounds']}"
        name = table["site"]
    except FileNotFoundError:
        return Health(False, f"{folder}: no site runs here, or it is still starting; its log says more")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Health(False, f"{folder / HEALTH_FILE} cannot be read ({error!r})")
    if abs(age) > OLD:  # also if the clock was set back
        return Health(False, f"{name}: no sign of life for {abs(age):.0f} s; it was {seen}")
    return Health(True, f"{name}: {seen}")
