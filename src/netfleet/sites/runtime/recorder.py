"""What a site writes down: its history and, after every round, its state."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from netfleet.engines.host import Host
from netfleet.engines.job import Snapshot
from netfleet.runs.recorder import RunRecorder
from netfleet.sites.planning.folders import LEAVE_FILE
from netfleet.sites.runtime.exchange import SiteSession, check_not_evicted
from netfleet.sites.runtime.kept import held_round, hold_fast, keep_last, kept_rounds, let_go
from netfleet.sites.runtime.models import ModelWriter
from netfleet.sites.runtime.status_builder import StatusBuilder


class AskedToLeave(Exception):
    """The operator, or the privacy budget, has asked the site to leave; `snapshot` is the last saved one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot


def hold(session: SiteSession, t: int) -> None:
    """Wait as long as the site holds after round t, unless it is asked to leave; so also when it is started again."""
    members = session.members
    leaves, own = (members.folder / LEAVE_FILE).exists, members.site.number
    session.alarms.hold(t, members.is_out, lambda: leaves() or members.why_evicted(own) is not None)
    check_not_evicted(members)


class SiteRecorder(RunRecorder):
    """Saves every round, and checks then whether the site was asked to leave."""

    #: Whether the last state stays in memory, for a neighbour that asks for the model.
    gives_model = True

    def __init__(
        self, session: SiteSession, status: StatusBuilder, models: ModelWriter, last: int, *settings: Any
    ) -> None:
        """`last` is the last round that the site's privacy budget allows."""
        super().__init__(*settings)
        self._session, self._status, self._models, self._last = session, status, models, last
        self._apart: list[int] = []

    def record(self, snapshot: Snapshot, host: Host) -> None:
        self._session.receipts.sync()  # a site that has used a message can always give the receipt for it
        super().record(snapshot, host)
        self._models.keep_best(host.problem, snapshot, self.history.records)
        members, alarms = self._session.members, self._session.alarms
        last = self.history.records[-1] if self.history.records else {}
        if last.get("round") == snapshot.t:
            alarms.check_scores(snapshot.t, self.history.records)
        self._keep(snapshot.t, alarms.first_round)
        self._status.note_round(snapshot, last, self.gives_model)
        hold(self._session, snapshot.t)
        for name, first in members.newly_served():
            self._session.log.event("served", neighbour=name, round=first)
        if (apart := members.sites_apart()) != self._apart:
            self._apart, names, log = apart, ", ".join(members.name(k) for k in apart), self._session.log
            if apart:
                log.event("unreachable", level="warning", sites=names, connected=len(members.known) - len(apart) - 1)
            else:
                log.event("reconnected")
        asked = snapshot.t >= self._last or (members.folder / LEAVE_FILE).exists()
        if asked and snapshot.t < self.rounds:
            raise AskedToLeave(snapshot)

    def _keep(self, t: int, alarmed: int | None) -> None:
        """Keep the checkpoint of round t; and as long as an alarm stands at any site, those that were there before."""
        members = self._session.members
        folder, keep = members.folder, members.site.keep
        members.note_alarm(alarmed is not None)
        anywhere, held = members.alarm_anywhere(), held_round(folder)
        if anywhere and held is None:
            hold_fast(folder, held := t if alarmed is None else min(alarmed, t))
        elif anywhere is False and held is not None:
            let_go(folder)
            held = None
        keep_last(folder, kept_rounds(t, keep) | (set() if held is None else kept_rounds(held, keep)))


class OwnLoopRecorder(SiteRecorder):
    """Of a site with a loop of its own: its history has what the loop measures."""

    gives_model = False  # the loop changes the state's tensors

    def __init__(self, measured: Callable[[], Mapping[str, float]], *settings: Any) -> None:
        super().__init__(*settings)
        self._measured = measured

    def _measure(self, snapshot: Snapshot, host: Host) -> None:
        measured = {name: value for name, value in self._measured().items() if math.isfinite(value)}
        record = {"round": snapshot.t, **measured, **self.counters(snapshot, host)}
        self.write_down(record)
