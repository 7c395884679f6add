"""Ranks that a part starts: `python -m MODULE OUT HASTE JOBS` is one of them; rank 0 writes what they found."""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks import processes
from benchmarks.setting import PAPER, QUICK, TINY
from netfleet.compute.threads import one_intra_op_thread
from netfleet.engines.ranks import joined
from netfleet.files import write_atomically

Found = dict[str, Any]


def launch(
    module: str, ranks: int, jobs: list[Found], haste: int = 0, prefix: Sequence[str] = (), **variables: str
) -> list[Found]:
    """What so many processes, started by torchrun (behind `prefix`, a command that runs another), measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [*prefix, *torchrun, "-m", module, str(out), str(haste), json.dumps(jobs)]
        processes.output(command, 3600, None, 60, **{"OMP_NUM_THREADS": "1", **variables})
        found: list[Found] = json.loads(out.read_text(encoding="utf-8"))
        return found


def measured(known: Mapping[str, Callable[..., Found]]) -> None:
    """In a rank: do the jobs of the command line, each with the function of its name."""
    out, setting = Path(sys.argv[1]), (PAPER, QUICK, TINY)[int(sys.argv[2])]
    with joined(), one_intra_op_thread():
        found = [known[job.pop("job")](setting, **job) for job in json.loads(sys.argv[3])]
        if dist.get_rank() == 0:
            write_atomically(out, lambda file: file.write(json.dumps(found).encode()))
