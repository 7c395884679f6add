"""Keeps a site's record: saves every round, and checks then whether the site was asked to leave."""

from __future__ import annotations

from netfleet.engines.loop import Host, Snapshot
from netfleet.runs.history import History
from netfleet.runs.progress import Display
from netfleet.runs.recorder import RunRecorder
from netfleet.sites.planning.folders import LEAVE_FILE
from netfleet.sites.runtime.session import SiteSession
from netfleet.sites.runtime.status_builder import StatusBuilder


class AskedToLeave(Exception):
    """The operator has asked the site to leave; `snapshot` is the last saved one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot


class SiteRecorder(RunRecorder):
    """The `Recorder` of one site."""

    def __init__(self, session: SiteSession, status: StatusBuilder, history: History, display: Display) -> None:
        super().__init__(history, session.algorithm, session.rounds, session.experiment.evaluation, 1, display)
        self._session, self._status = session, status
        self._apart: list[int] = []

    def take(self, snapshot: Snapshot, host: Host) -> None:
        super().take(snapshot, host)
        self._status.note_round(snapshot, self.history.records[-1] if self.history.records else {})
        self._check_apart()
        if (self._session.folder / LEAVE_FILE).exists() and snapshot.t < self.rounds:
            raise AskedToLeave(snapshot)

    def _check_apart(self) -> None:
        """Log if the set of sites that are out of reach has changed."""
        members, apart = self._session.membership, self._session.membership.sites_apart()
        if apart != self._apart:
            self._apart = apart
            names, rest = ", ".join(members.name(k) for k in apart), len(members.known) - len(apart)
            self._session.log.event("apart", level="warning", sites=names, goes_on_with=rest - 1)
