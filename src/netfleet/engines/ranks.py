"""Joining and leaving a job of `torch.distributed` ranks, and what is said when other ranks are gone or hang."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from netfleet.engines.stopping import AGAIN, REQUEST, ended_with_the_others
from netfleet.errors import ConfigError, NetfleetError, TransportError

#: The variable with the seconds after which a rank that does not answer ends the job; the default is that of torch.
TIMEOUT, SECONDS = "NETFLEET_TIMEOUT", 1800.0


@contextmanager
def joined(device: str = "cpu") -> Iterator[None]:
    """Within this, the process is a rank of the job that torchrun started."""
    if not dist.is_available():
        raise ConfigError("this torch is built without torch.distributed; install one that has it")
    if dist.is_initialized():  # by the script that calls this
        yield
        return
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f'engine "distributed" needs processes that torchrun starts, but {", ".join(missing)} is not set; start '
            f"it with: torchrun --nproc-per-node 2 -m netfleet run FILE.toml --engine distributed"
        )
    timeout, backend = timeout_from_environment(), "gloo"
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise ConfigError(f'device {device!r} cannot be used here: torch finds no GPU; use device = "cpu"')
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    with reaching("another rank"):
        dist.init_process_group(backend, timeout=timeout)
    with REQUEST.handled():
        try:
            yield
            _leave_together()
        except TransportError as error:
            raise (ended_with_the_others() if REQUEST.made else TransportError(f"{error}. {AGAIN}")) from None
        except NetfleetError as error:
            if error.shared:
                _leave_together()
            raise
        finally:
            dist.destroy_process_group()


def timeout_from_environment() -> timedelta:
    """How long a rank waits for another one."""
    text = os.environ.get(TIMEOUT, "")
    try:
        seconds = float(text or SECONDS)
        if 0 < seconds < 1e8:  # three years; also rejects NaN
            return timedelta(seconds=seconds)
    except ValueError:
        pass
    raise ConfigError(f"{TIMEOUT} is {text!r}, but it must be a number of seconds above 0, such as 600")


def _leave_together() -> None:
    """Wait for all ranks: one that leaves while another waits for its message would make that one fail."""
    with reaching("another rank"):
        dist.barrier()


#: Words in the errors, of no particular type, that torch raises when other ranks are gone.
_GONE = re.compile(r"connection|socket|peer|timed? ?out|closed|reset|refused|unreachable|broken pipe", re.IGNORECASE)
_HANGS = re.compile(r"timed? ?out.*?(\d+) ?ms", re.IGNORECASE)


@contextmanager
def reaching(whom: str) -> Iterator[None]:
    """Raise a TransportError where torch's error says that other ranks are gone or hang; pass on all other errors."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if not isinstance(error, dist.DistError) and not _GONE.search(str(error)):
            raise
        raise TransportError(_explained(whom, str(error))) from None


def _explained(whom: str, error: str) -> str:
    if hangs := _HANGS.search(error):
        return (
            f"{whom} has not answered for {int(hangs[1]) / 1000:g} s: it hangs or is much slower; its own log may say "
            f"why. If it only needs longer, set {TIMEOUT} (in a script of your own init_process_group's timeout) to "
            f"more seconds"
        )
    reason = re.sub(r"^\[[^]]*\] *", "", error.strip()).split("\n")[0].split(". ")[0]
    me = os.environ.get("RANK", "?")
    return f"rank {me} cannot reach {whom}: a process has died or a connection was lost ({reason})"
