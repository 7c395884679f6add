"""Every error that netfleet raises on purpose.

Each message says what came, what was expected and what to do; the command line prints it without a traceback.
"""


class NetfleetError(Exception):
    """Base class: `except NetfleetError` catches whatever netfleet raises on purpose."""

    #: On a cluster: whether every rank has this error, so that one of them speaks for all.
    shared = False


class ConfigError(NetfleetError, ValueError):
    """An experiment file, option or argument that makes no sense."""


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


class FrameError(TransportError):
    """Bytes that are not what a neighbour may send now; they are refused and change nothing."""


class EngineError(NetfleetError):
    """A process that helps with the computation failed or died."""


class DivergedError(NetfleetError, ArithmeticError):
    """A run with a value that is not finite, or that has blown up by the end; what it had reached before is kept."""
