"""`netfleet status --watch`: the table again and again, in colour, until Ctrl-C."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from netfleet.errors import ConfigError
from netfleet.sites.operations.status import StatusAnswer
from netfleet.sites.operations.status_table import status_lines, status_table

#: Seconds between the answers and the next question.
INTERVAL = 5.0

Ask = Callable[[], Sequence[StatusAnswer]]


def watch(ask: Ask, console: Console, interval: float = INTERVAL, pause: Callable[[float], None] = time.sleep) -> int:
    """Show the answers until Ctrl-C, and then leave the last on the terminal; returns the exit code.

    The terminal is written to once for each set of answers, and the sites are asked one set at a time, so a slow link
    makes it slower but never piles anything up.
    """
    if not console.is_terminal:
        raise ConfigError("--watch needs a terminal; without one, repeat netfleet status, or netfleet status --json")
    answers: Sequence[StatusAnswer] = ()
    page = _page((), interval, console)
    try:
        with Live(page, console=console, screen=True, auto_refresh=False) as live:
            live.update(page, refresh=True)
            while True:
                answers = ask()
                page = _page(answers, interval, console)
                live.update(page, refresh=True)
                pause(interval)
    except KeyboardInterrupt:
        if answers:
            console.print(page)
        return int(any(answer.missing for answer in answers))


def _page(answers: Sequence[StatusAnswer], interval: float, console: Console) -> Group:
    if not answers:
        return Group(Text("asks the sites …", "dim"))
    lines = [Text(line, _style(line)) for line in status_lines(answers)]
    now = f"{datetime.now(UTC):%H:%M:%S} UTC, every {interval:g} s; Ctrl-C ends this"
    return Group(Text(now, "dim"), status_table(answers, console.width), *lines)


def _style(line: str) -> str:
    """The sentence about the cause of a wait stands out."""
    return "bold yellow" if ", which has been " in line or "cannot reach it" in line else ""
