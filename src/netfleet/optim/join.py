"""A site of a plan as the connection of a training loop: `netfleet.optim.join("plan/org-a")`.

    netfleet.optim.join("plan/org-a")  # instead of init_process_group; the folder is made by netfleet plan
    optimizer = netfleet.optim.NetFleet(model.parameters(), lr=0.05, K=10)

From then on an optimizer of this process trains with the site's neighbours, for as many rounds as planned. The plan has
the graph, the method and its settings; the step size is the loop's. When the rounds are done, `optimizer.finished` is
True and the model is in the site's folder. The site answers its neighbours in the background; the process waits for
them when it ends.
"""

import atexit
import os
import re
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from torch import Tensor

from netfleet.algorithms import Algorithm
from netfleet.engines.job import Snapshot, Start
from netfleet.environment import need_packages
from netfleet.errors import ConfigError, DivergedError, NetfleetError
from netfleet.exit_codes import exit_on_refusal
from netfleet.files import locked
from netfleet.optim.loop_problem import LoopProblem, LoopRecorder
from netfleet.optim.parameters import digest
from netfleet.problems.own_loop import NO_WAY_BACK, OWN_LOOP
from netfleet.sites import LINGER

if TYPE_CHECKING:
    from netfleet.sites.policy.start import OpenedSite
    from netfleet.sites.runtime.exchange import SiteSession
    from netfleet.sites.runtime.runner import SiteRunner

_current: "JoinedSite | None" = None


def join(
    folder: str | Path,
    *,
    metrics: str | None = None,
    log: Literal["text", "json"] | None = None,
    linger: float = LINGER,
    policy: str | Path | None = None,
) -> "JoinedSite":
    """Let the optimizers of this process train with the neighbours of a site, whose folder `netfleet plan` has made.

    `metrics` is an address for Prometheus ("127.0.0.1:9400"), `log` the format of the log on standard error (text on a
    terminal, else JSON). At the end the process waits for a neighbour that is not done as long as that one answers, and
    `linger` seconds longer. `policy` is the site's policy, if it is not in its folder. The result can be used as a
    context, whose end is then that of the site.
    """
    global _current
    exit_on_refusal()
    if _current is not None:
        raise ConfigError(f"this process has joined as {_current.name} already; a process is one site")
    _current = JoinedSite(Path(folder), metrics, log, linger, None if policy is None else Path(policy))
    atexit.register(_current.close)
    return _current


def joined() -> "JoinedSite | None":
    """The site as which this process has joined, if it has."""
    return _current


class JoinedSite:
    """A `Connection` to the neighbours of a site."""

    def __init__(
        self, folder: Path, metrics: str | None, log: str | None, linger: float, policy: Path | None = None
    ) -> None:
        need_packages("grpc", "cryptography")
        from netfleet.sites.policy.start import check_metrics, open_site

        opened = open_site(folder, policy)
        check_metrics(opened.in_force, metrics)
        self._stack = ExitStack()
        with ExitStack() as opening:
            self._runner = _runner(folder, opened, log, linger, opening)
            if metrics is not None:
                need_packages("prometheus_client")
                from netfleet.sites.operations.prometheus import expose

                expose(self._runner.status.status, self._runner.log, metrics, self._runner.note_metrics)
            self._stack = opening.pop_all()
        site = self._runner.site
        self.name, self.worker, self.workers = site.name, site.number, site.workers
        self.rounds: int | None = self._runner.experiment.rounds
        self._facts: dict[str, str] = {}
        self._measured: dict[str, float] = {}
        self._session: SiteSession | None = None
        self._staying: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def report(self, **measured: float) -> None:
        """Let the site's history and status have what the loop has measured, such as `loss` and `accuracy`."""
        self._measured = {name: float(value) for name, value in measured.items()}

    def close(self) -> None:
        """End the site; if its training is over, wait first until its neighbours have what they need from it."""
        global _current
        atexit.unregister(self.close)
        try:
            if self._staying is not None:
                self._staying.result()
        finally:
            self._stack.close()
            _current = None if _current is self else _current

    # ---- the connection ----

    def adopt(self, method: Algorithm) -> Algorithm:
        planned = self._runner.algorithm
        if method.with_eta(1.0) != planned.with_eta(1.0):
            raise ConfigError(
                f"the plan of {self.name} trains with {_in_words(planned)}, but this optimizer is {_in_words(method)}; "
                f"make it the same (the learning rate may be another), or plan again"
            )
        return method

    def compare(self, t: int, facts: Mapping[str, str]) -> None:
        """The neighbours are asked when the training starts, in its thread: they may not be there yet."""
        self._facts |= facts

    def place(self) -> Mapping[str, str]:
        return {}  # a site loads its own folder only

    def common_start(self, values: Tensor) -> Tensor:
        """Nobody can give all sites one model: they must have the same already, which is compared like other facts."""
        from netfleet.sites.runtime.facts import INITIAL

        self._facts[INITIAL] = digest([values])
        return values

    def average(self, t: int, values: Tensor) -> Tensor:
        raise ConfigError("a site sees its neighbours' messages only, so there is no average over all; leave it out")

    def train(self, problem: LoopProblem, method: Algorithm, start: Start | None, first: int) -> Snapshot:
        from netfleet.sites.operations.logs import Logged
        from netfleet.sites.operations.process import log_failure
        from netfleet.sites.runtime.runner import OwnLoop

        if start is not None or first:
            raise ConfigError(f"{self.name} resumes from its own folder by itself; load no other state")
        if self._session is not None:
            raise ConfigError(f"{self.name} is trained by another optimizer already; a site has one")
        own = OwnLoop(
            problem,
            method,
            lambda then: LoopRecorder(problem.handover, then),
            self._facts,
            lambda final: problem.named_values(),
            lambda: self._measured,
        )
        runner = self._runner
        try:
            self._session, history = runner.train(self._stack, Logged(runner.log), own=own)
        except NetfleetError as error:
            what = "diverged" if isinstance(error, DivergedError) else "failed"
            runner.log.event(what, level="error", round=runner.status.t, why=error)
            raise
        except Exception as error:
            log_failure(runner, error)
        self._staying = self._session.loop.start(runner.stay(self._session))
        assert history.final is not None
        return history.final


def _runner(folder: Path, opened: "OpenedSite", log: str | None, linger: float, stack: ExitStack) -> "SiteRunner":
    """The runner of a site; the folder is locked until the stack is closed."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from netfleet.sites.operations.logs import Log
    from netfleet.sites.operations.process import check_stays, log_start
    from netfleet.sites.planning.certificates import load_identity
    from netfleet.sites.planning.folders import names_of_neighbours
    from netfleet.sites.policy.rules import Terms
    from netfleet.sites.runtime.runner import SiteRunner

    site, experiment, in_force = opened
    if (kind := experiment.problem["kind"]) != OWN_LOOP:
        raise ConfigError(
            f"{folder} is of a plan whose sites train {kind!r} (netfleet node {folder}); for a loop of your own, plan "
            f'with problem.kind = "{OWN_LOOP}"'
        )
    identity = load_identity(folder, site.name)
    check_stays(site, folder, NO_WAY_BACK)
    if not stack.enter_context(locked(folder)):
        raise ConfigError(f"{folder} is already run by another process; stop that one first")
    as_json = log == "json" or (log is None and not sys.stderr.isatty())
    events = Log(site.name, sys.stderr, as_json, names_of_neighbours(folder))
    log_start(events, identity, in_force)
    return SiteRunner(folder, site, experiment, identity, events, linger, terms=Terms(in_force))


def _in_words(method: Algorithm) -> str:
    """A method without its step size."""
    return re.sub(r"eta=\w+\([^()]*\)(, )?", "", repr(method.with_eta(1.0)))
