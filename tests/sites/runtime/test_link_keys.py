"""Secrets of links: both ends have the same, nobody else's key is taken, and they survive a restart."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
import torch

from netfleet import NetFleet
from netfleet.engines.host import Tag
from netfleet.engines.job import Snapshot
from netfleet.errors import ConfigError, FrameError
from netfleet.runs.progress import Quiet
from netfleet.sites.network.client import Answer, Wanted
from netfleet.sites.network.loop_thread import LoopThread
from netfleet.sites.network.outbox import Message, Outbox
from netfleet.sites.network.transport import Contact
from netfleet.sites.network.wire import Kind
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.admit import admit
from netfleet.sites.planning.certificates import (
    load_authority,
)
from netfleet.sites.planning.nodes_file import NodeEntry
from netfleet.sites.runtime.exchange import SiteSession, Waiting
from netfleet.sites.runtime.join_leave import model_message
from netfleet.sites.runtime.link_keys import KEYS_FILE, LinkKeys, Statement, parse_statement
from netfleet.sites.runtime.membership import Membership
from netfleet.sites.runtime.site_noise import Agreement, sent_model
from support.site_memory import give_simulated_secrets, run_in_memory, run_planned
from support.site_processes import plan_sites
from support.site_settings import DIGITS, QUADRATICS, simulated

RUN, OTHER_RUN = "ab" * 32, "cd" * 32


def keys(folder: Path, name: str, run: str = RUN, resumes: bool = False) -> LinkKeys:
    (folder / name).mkdir(exist_ok=True)
    return LinkKeys(folder / name, run, name, resumes)


def agree(one: LinkKeys, other: LinkKeys, since: int = 0) -> None:
    for here, there, name, j in ((one, other, "b", 1), (other, one, "a", 0)):
        found = parse_statement(bytes(there.statement(1 - j, since).message().data.tolist()))
        here.learn(j, name, since, found)


def test_both_ends_of_a_link_have_the_same_secret_and_each_link_its_own(tmp_path: Path) -> None:
    a, b = keys(tmp_path, "a"), keys(tmp_path, "b")
    assert a.secret(1, 0) is None
    agree(a, b)
    agree(a, b, since=7)
    first, later = a.secret(1, 0), a.secret(1, 7)
    assert first == b.secret(0, 0)
    assert later == b.secret(0, 7)
    assert first != later


def test_a_restarted_site_has_the_same_secrets_for_its_owner_only(tmp_path: Path) -> None:
    a, b = keys(tmp_path, "a"), keys(tmp_path, "b")
    agree(a, b)
    path = tmp_path / "a" / KEYS_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    again = keys(tmp_path, "a", resumes=True)
    assert (again.public, again.secret(1, 0)) == (a.public, a.secret(1, 0))
    assert a.secret(1, 0).key.hex() not in repr(a.secret(1, 0))  # type: ignore[union-attr]


def test_a_site_without_its_keys_or_with_damaged_ones_does_not_go_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"noise\.json is missing, so this site's noise would not cancel"):
        keys(tmp_path, "a", resumes=True)
    keys(tmp_path, "a")
    with pytest.raises(ConfigError, match="it is of another run"):
        keys(tmp_path, "a", OTHER_RUN)
    (tmp_path / "a" / KEYS_FILE).write_text("{}")
    with pytest.raises(ConfigError, match=r"noise\.json is damaged"):
        keys(tmp_path, "a")


def test_a_site_with_new_keys_is_told_that_its_neighbour_holds_the_old_one(tmp_path: Path) -> None:
    a, b = keys(tmp_path, "a"), keys(tmp_path, "b")
    agree(a, b)
    shutil.rmtree(tmp_path / "a")
    new = keys(tmp_path, "a")
    with pytest.raises(ConfigError, match="b has agreed on noise with an earlier key of this site"):
        new.learn(1, "b", 0, b.statement(0, 0))
    new.learn(1, "b", 9, b.statement(0, 9))  # a new link is another matter


def test_a_key_with_which_everyone_has_the_same_secret_is_refused(tmp_path: Path) -> None:
    """A point of small order."""
    with pytest.raises(FrameError, match="one of a few bad ones"):
        keys(tmp_path, "b").learn(0, "a", 0, keys(tmp_path, "a").statement(1, 0)._replace(public=bytes(32)))


# --------------------------------------------------------------------------------------------------------------- sites


class Answers:
    """A client whose neighbours answer with these statements, or not at all."""

    def __init__(self, statements: dict[str, Statement]) -> None:
        self.statements, self.refused = statements, list[str]()

    async def pull(self, contact: Contact, wanted: Wanted, rounds: object = (), kind: Kind = Kind.PULL) -> Answer:
        assert kind == Kind.KEY
        if (found := self.statements.get(contact.neighbour.name)) is None:
            return Answer(Kind.WAIT, -1)
        wanted.into[:] = bytes(found.message().data.tolist())
        try:
            wanted.finite()
        except FrameError as error:
            self.refused.append(str(error))
            return Answer(Kind.WAIT, -1)
        return Answer(Kind.CHUNK, -1)


def test_a_neighbour_without_a_good_key_is_refused_and_given_up_on_disk(tmp_path: Path) -> None:
    plan = plan_sites(tmp_path, {**QUADRATICS, "privacy": {"link_noise": 1.0}}, 4, patience=1.0)
    folders = {site.name: tmp_path / "plan" / site.name for site in plan.sites}

    own, stream = keys(tmp_path, "s0", plan.run), io.StringIO()
    log = Log("s0", stream, as_json=True)
    client = Answers({"s1": keys(tmp_path, "s1", plan.run).statement(0, 0), "s3": Statement(bytes(32), bytes(32))})
    members = Membership(folders["s0"], plan.sites[0], 90, Outbox(), log.refused)
    with LoopThread() as loop:
        session = SiteSession(members, client, None, loop, log, None)  # type: ignore[arg-type]
        agree = Agreement(session, own, Waiting(members, log, Quiet()))
        secrets = agree({1: 0, 3: 0}, 0)
    assert list(secrets) == [1]
    assert secrets[1] == own.secret(1, 0)
    assert "one of a few bad ones" in client.refused[0]
    assert json.loads((folders["s0"] / "links.json").read_text())["lost"] == {"3": 0}
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["agreed", "lost", "exposed"]


def test_a_neighbour_that_asks_for_the_model_gets_what_was_sent() -> None:
    """The model itself has no noise of this round."""
    outbox, like = Outbox(), model_message(Snapshot(3, NetFleet.State(*3 * [torch.ones(1, 4)])))
    with pytest.raises(FrameError, match="no model yet"):
        sent_model(outbox, like)
    for t in (1, 2):
        outbox.post(Tag(t, 0), Message("x and y", torch.arange(t, t + 32, dtype=torch.uint8)))
    found = sent_model(outbox, like)
    assert found.words == like.words
    assert torch.equal(found.data, torch.arange(2, 18, dtype=torch.uint8))


def test_plans_in_which_a_site_would_not_be_hidden_are_rejected(tmp_path: Path) -> None:
    noisy = {**QUADRATICS, "privacy": {"link_noise": 1.0}}
    with pytest.raises(ConfigError, match="worker 1 has no second one"):
        plan_sites(tmp_path, {**noisy, "topology": {"kind": "star"}}, 4)
    plan_sites(tmp_path, noisy, 4)
    authority = load_authority(tmp_path / "plan" / "ca" / "ca.pem", tmp_path / "plan" / "ca" / "ca.key")
    with pytest.raises(ConfigError, match="name two --neighbours or more"):
        admit(tmp_path / "plan", NodeEntry("s4", "127.0.0.1:1"), ["s0"], authority, 1)


def test_sites_with_noise_end_where_the_simulator_does(tmp_path: Path) -> None:
    table = {**DIGITS, "rounds": 6, "topology": {"kind": "ring", "workers": 4}, "privacy": {"link_noise": 0.05}}
    expected = simulated(table)
    plan = plan_sites(tmp_path, table, 4)
    give_simulated_secrets(plan, tmp_path)
    for i, history in enumerate(run_planned(plan, tmp_path)):
        assert history.final is not None
        assert (history.final.state.x[0] - expected[i]).abs().max() <= 1e-10


def test_sites_agree_on_secrets_of_their_own_and_their_sums_are_exact(tmp_path: Path) -> None:
    table = {**QUADRATICS, "rounds": 10, "privacy": {"link_noise": 1.0}}
    states = [history.final.state for history in run_in_memory(tmp_path, table, 4)]  # type: ignore[union-attr]
    assert sum(state.y - state.g for state in states).norm() < 1e-12
    plain = simulated({**table, "privacy": {"link_noise": 1.0}})
    assert all((state.x[0] - row).norm() > 0.1 for state, row in zip(states, plain, strict=True))
    links = [json.loads((tmp_path / "plan" / f"s{i}" / "run" / KEYS_FILE).read_text())["links"] for i in range(4)]
    for i in range(4):
        assert sorted(links[i]) == sorted(f"{j % 4}/0" for j in (i - 1, i + 1))
        assert links[i][f"{(i + 1) % 4}/0"]["secret"] == links[(i + 1) % 4][f"{i}/0"]["secret"]
    assert len({link["secret"] for site in links for link in site.values()}) == 4
