"""Where netfleet runs: as which process of a job, and whether in a notebook."""

import importlib.util
import os
import sys

from netfleet.errors import ConfigError


def speaks() -> bool:
    """Whether this process prints and writes reports: rank 0 does so for all ranks of a job."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


def in_notebook() -> bool:
    """Whether a Jupyter or Colab kernel runs this process; a terminal's IPython is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ in ("ZMQInteractiveShell", "Shell")


def missing_packages(*names: str) -> list[str]:
    """Which of these packages are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def need_packages(*names: str, extra: str = "sites") -> None:
    """Raise unless these packages are installed, which only sites need, or what else an extra is for."""
    if missing := missing_packages(*names):
        raise ConfigError(
            f"{extra} need{'s' * (extra != 'sites')} {', '.join(missing)}, not installed here; pip install "
            f"'netfleet[{extra}]'"
        )
