"""How a script ends whose training was refused: with one sentence and an exit code, as the command line does."""

import sys
from types import TracebackType

from netfleet.errors import DivergedError, NetfleetError


def end_with_a_sentence() -> None:
    """From now on an error of netfleet's that nobody catches ends the script as it would end a command."""
    if sys.excepthook is not _end:
        _before.append(sys.excepthook)
        sys.excepthook = _end


_before = [sys.__excepthook__]


def _end(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not isinstance(error, NetfleetError):
        _before[-1](kind, error, traceback)
        return
    print(f"netfleet: error: {error}", file=sys.stderr)
    raise SystemExit(1 if isinstance(error, DivergedError) else 2)  # Python ends with this code
