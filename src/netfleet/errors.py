"""Every error that netfleet raises on purpose.

Each message says what came, what was expected and what to do; the command line prints it without a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netfleet.runs.history import History


class NetfleetError(Exception):
    """Base class: `except NetfleetError` catches whatever netfleet raises on purpose."""

    #: On a cluster: whether every rank has this error, so that one of them speaks for all.
    shared = False
    #: With which a command, or a rank with a script of its own, ends.
    exit_code = 2


class ConfigError(NetfleetError, ValueError):
    """An experiment file, option or argument that makes no sense."""


class PolicyError(ConfigError):
    """Something that a site's own policy does not allow, or a policy that is missing or broken."""


class TopologyError(NetfleetError, ValueError):
    """A graph or consensus matrix that breaks one of the properties of Section 3.2."""


class DataError(NetfleetError):
    """A data file that is missing or corrupt, or a partition that cannot be made from the data."""


class CheckpointError(NetfleetError):
    """A checkpoint or history that cannot be read, or that belongs to another run."""


class StorageError(NetfleetError, OSError):
    """A file that cannot be written: the disk is full or read-only; what was written before is intact."""


class TransportError(NetfleetError):
    """A neighbour that did not answer in time or went away."""


class NoLinkError(TransportError):
    """A site that its neighbours have given up, or that has none left; it can come back (`rejoin`)."""


class RollbackError(NetfleetError):
    """A site that was not rolled back as its neighbours were; started with `rejoin` again, it takes part with them."""


class CertificateError(TransportError):
    """A certificate that a site does not accept, although its authority has signed it."""


class FrameError(TransportError):
    """Bytes that are not what a neighbour may send now; they are refused and change nothing."""


class RecordError(NetfleetError):
    """A site's record of what it sent (`receipts.jsonl`) that was altered or cannot be read."""


class EngineError(NetfleetError):
    """A process that helps with the computation failed or died."""


class StoppedError(NetfleetError):
    """A job on a cluster that a signal has stopped after a checkpoint; it can be resumed."""

    exit_code = 75  # sysexits.h: a temporary failure, try again


class DivergedError(NetfleetError, ArithmeticError):
    """A run with a value that is not finite, or that has blown up by the end; what it had reached before is kept.

    From `simulate` it has the run's `history`: the records up to then, and as `history.final` the last good state.
    """

    exit_code = 1

    def __init__(self, message: str, history: History | None = None) -> None:
        super().__init__(message)
        self.history = history


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or a notebook's stop button, during a run; it has what was made until then.

    `histories` are those of the runs that were begun, and `history` is the last of them: its records, and as
    `history.final` the state after the last whole round. Like every KeyboardInterrupt it ends a script and passes
    `except Exception`, so nothing goes on as if the run were complete.
    """

    def __init__(self, histories: Sequence[History]) -> None:
        self.histories, self.history = list(histories), histories[-1]
        done = self.history.rounds if self.history.final is None else self.history.final.t
        words = f"{self.history.label}, seed {self.history.seed}, was stopped after round {done}"
        kept = "this exception's .history has its records (in a notebook: sys.last_value.history)"
        saved = "" if self.history.folder is None else ", and the same call with resume=True completes it"
        super().__init__(f"{words}; {kept}{saved}")
