"""Sites that go back to an earlier round: what they keep for that, and that nothing is inconsistent afterwards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from netfleet.cli import main
from netfleet.errors import CheckpointError, ConfigError, FrameError, RollbackError
from netfleet.prediction.model_file import read_info
from netfleet.privacy.account import SiteAccount
from netfleet.privacy.receipts.lines import RolledBack, Sent
from netfleet.sites.network.wire import Frame, Kind, check_origin
from netfleet.sites.planning.rollbacks import NONE, Pending, Rollbacks, read_rollbacks, rollbacks_in, write_rollbacks
from netfleet.sites.runtime.kept import available, keep_last, kept_rounds
from netfleet.sites.runtime.membership import links_before, write_links
from netfleet.sites.runtime.rollback import roll_back, shared_rounds, site_rounds
from support.receipts import check_records, entries
from support.site_memory import MemorySites
from support.site_processes import plan_sites
from support.site_settings import DIGITS, QUADRATICS, M

SHORT: dict[str, Any] = {**QUADRATICS, "rounds": 16, "evaluation": {"every": 1}}
RUN = "ab" * 32


# ---- which checkpoints are kept ----


@given(st.integers(0, 5000), st.integers(2, 10))
def test_the_kept_rounds_are_so_many_and_reach_back(t: int, keep: int) -> None:
    kept = kept_rounds(t, keep)
    assert len(kept) <= keep
    assert t in kept
    assert len(kept) == keep or t < 2 ** (keep - 1)
    assert t - min(kept) >= min(t, 2 ** (keep - 2))


@given(st.integers(0, 5000), st.integers(2, 10))
def test_a_round_that_is_not_kept_is_not_kept_later(t: int, keep: int) -> None:
    assert kept_rounds(t + 1, keep) <= kept_rounds(t, keep) | {t + 1}


@given(st.integers(0, 2000), st.integers(0, 20), st.integers(7, 10))
def test_sites_that_are_some_rounds_apart_have_rounds_in_common(t: int, apart: int, keep: int) -> None:
    shared = kept_rounds(t, keep) & kept_rounds(t + apart, keep)
    assert shared
    assert t - max(shared) <= 2 * apart


def test_what_a_crash_has_left_of_a_kept_checkpoint_goes(tmp_path: Path, once: MemorySites) -> None:
    folder = copied(once, tmp_path).folder / "s0"
    (folder / "kept" / "8" / "checkpoint.json").unlink()
    assert 8 not in available(folder)
    keep_last(folder, {12, 16})
    assert sorted(path.name for path in (folder / "kept").iterdir()) == ["12", "16"]


# ---- which sites may train together ----


@given(st.lists(st.integers(0, 2**20), max_size=5))
def test_a_frame_says_how_often_its_sender_was_rolled_back(rounds: list[int]) -> None:
    rollbacks = NONE
    for to in rounds:
        rollbacks = rollbacks.next(to)
    assert rollbacks_in(rollbacks.run_id(RUN)) == rollbacks
    assert len(rollbacks.run_id(RUN)) == 32


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        ([], [40], "was not rolled back and this site was rolled back once to round 40.* there: .*--to 40"),
        ([40], [], "once to round 40 and this site was not rolled back.* here: .*--to 40"),
        ([40, 16], [16], "2 times, last to round 16 and this site was rolled back once to round 16"),
        ([40, 16], [32, 16], "so they cannot train together"),
    ],
)
def test_sites_that_were_rolled_back_otherwise_are_refused(theirs: list[int], ours: list[int], words: str) -> None:
    ids = []
    for rounds in (theirs, ours):
        rollbacks = NONE
        for to in rounds:
            rollbacks = rollbacks.next(to)
        ids.append(rollbacks.run_id(RUN))
    with pytest.raises(FrameError, match=words):
        check_origin(Frame(Kind.PULL, ids[0], 1, 3), ids[1], 1)
    check_origin(Frame(Kind.JOIN, ids[0], 1, 3), ids[1], 1, whatever_rollbacks=True)
    with pytest.raises(FrameError, match="different plans"):
        check_origin(Frame(Kind.JOIN, bytes(32), 1, 3), ids[1], 1, whatever_rollbacks=True)


# ---- going back ----


def trained(folder: Path, table: dict[str, Any], count: int = M) -> MemorySites:
    """Sites that have trained to the end."""
    sites = MemorySites(plan_sites(folder, table, count), folder)
    train(sites)
    return sites


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> MemorySites:
    """Sites that have trained to the end; tests take copies."""
    return trained(tmp_path_factory.mktemp("trained"), SHORT)


def copied(sites: MemorySites, folder: Path) -> MemorySites:
    shutil.copytree(sites.folder, folder / "plan")
    return MemorySites(sites.plan, folder)


def train(sites: MemorySites) -> None:
    sites.start()
    for name in sites.names:
        sites.end(name)


def files(sites: MemorySites) -> dict[str, Any]:
    """The models, the states and the histories of all sites."""
    found: dict[str, Any] = {}
    for folder in sites.folders():
        lines = (folder / "run" / "history.jsonl").read_text().splitlines()
        found[folder.name] = [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
        (state,) = (folder / "run").glob("checkpoint-*.safetensors")
        for path in [state, *folder.glob("model*.safetensors")]:
            found |= {f"{folder.name}/{path.name}/{key}": value for key, value in load_file(path).items()}
    return found


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for key, value in a.items():
        assert torch.equal(value, b[key]) if isinstance(value, torch.Tensor) else value == b[key], key


def test_rounds_that_are_computed_again_give_the_same_bits_and_records_agree(tmp_path: Path, once: MemorySites) -> None:
    sites = copied(once, tmp_path)
    before = files(sites)
    assert available(sites.folder / "s0") == sorted(kept_rounds(16, 8))
    assert main(["rollback", str(sites.folder), "--to", "8"]) == 0
    for folder in sites.folders():
        assert available(folder) == [0, 8]
        assert not (folder / "model.safetensors").exists()
    train(sites)
    same(before, files(sites))
    check_records(sites.folders())
    for folder in sites.folders():
        assert entries(folder, RolledBack) == [RolledBack(1, 8, 16)]
        rounds = [sent.round for sent in entries(folder, Sent) if sent.what == "message"]
        assert rounds == [*range(16), *range(8, 16)]
        assert not sites.events(folder.name, "differs") + sites.events(folder.name, "unknown")


def test_time_boxes_and_the_best_model_are_as_before(tmp_path: Path) -> None:
    problem = {**DIGITS["problem"], "validation": 0.2, "partition": "iid"}
    box = {"rounds": 12, "evaluation": {"every": 1}, "time_box": {"seconds": 0.01}, "problem": problem}
    sites = trained(tmp_path, {**DIGITS, **box, "topology": {"kind": "ring", "workers": 3}}, 3)
    before, steps = files(sites), [(folder / "run" / "steps.jsonl").read_text() for folder in sites.folders()]
    assert main(["rollback", str(sites.folder), "--to", "8"]) == 0
    for folder in sites.folders():
        best = folder / "model-best.safetensors"
        assert not best.exists() or read_info(best).origin.round <= 8
    train(sites)
    same(before, files(sites))
    assert steps == [(folder / "run" / "steps.jsonl").read_text() for folder in sites.folders()]


def test_noise_of_links_is_another_and_the_sum_stays(tmp_path: Path) -> None:
    sites = trained(tmp_path, {**SHORT, "privacy": {"link_noise": 0.3, "exact_rounds": 4}})
    before = files(sites)
    roll_back(sites.folders(), 8)
    train(sites)
    after, digests = files(sites), {}
    gap = sum(after[f"{n}/{state_of(sites, n)}/y"] - after[f"{n}/{state_of(sites, n)}/g"] for n in sites.names)
    assert float(gap.norm()) < 1e-12
    for sent in (sent for sent in entries(sites.folder / "s0", Sent) if sent.what == "message"):
        digests.setdefault(sent.round, set()).add(sent.digest)
    assert [len(digests[t]) for t in range(16)] == [1] * 8 + [2] * 8  # in round 8 the same vectors with other noise
    assert not torch.equal(before["s0/model.safetensors/x"], after["s0/model.safetensors/x"])
    assert not sites.events("s0", "differs")
    check_records(sites.folders())


def state_of(sites: MemorySites, name: str) -> str:
    (path,) = (sites.folder / name / "run").glob("checkpoint-*.safetensors")
    return path.name


def test_private_gradients_are_counted_again_and_get_new_noise(tmp_path: Path) -> None:
    queries = [1 + 3 * t for t in range(31)]
    account = SiteAccount(tmp_path, queries, resumes=False, rows="a")
    first = account.secret(0)
    account.secret(25)
    counted = account.counted(30)  # until the end, as far as it is counted ahead
    again = SiteAccount(tmp_path, queries, resumes=True, rows="a", rollbacks=1, rolled_to=16)
    assert again.secret(16) != first
    assert again.counted(16) == counted
    assert again.counted(20) == counted + queries[20] - queries[16]
    same = SiteAccount(tmp_path, queries, resumes=True, rows="a", rollbacks=1, rolled_to=16)
    assert same.secret(16) == again.secret(16)
    assert same.counted(20) == again.counted(20)


@pytest.mark.slow
def test_private_sites_go_back(tmp_path: Path) -> None:
    privacy = {"clip": 1.0, "noise": 1.0}
    table = {**DIGITS, "rounds": 12, "privacy": privacy, "topology": {"kind": "ring", "workers": 3}}
    sites = trained(tmp_path, table, 3)
    before = sites.end("s0").last["epsilon"]
    roll_back(sites.folders(), 8)
    train(sites)
    assert sites.end("s0").last["epsilon"] > before
    assert not sites.events("s0", "differs")
    check_records(sites.folders())


# ---- what cannot be done ----


def test_none_goes_back_if_one_cannot(tmp_path: Path, once: MemorySites, capsys: pytest.CaptureFixture[str]) -> None:
    sites = copied(once, tmp_path)
    found = [site_rounds(folder) for folder in sites.folders()]
    assert shared_rounds(found) == sorted(kept_rounds(16, 8))
    with pytest.raises(CheckpointError, match="s0 has no checkpoint of round 11, but of 0, 8, 12"):
        roll_back(sites.folders(), 11)
    (sites.folder / "s3" / "leave").write_text("16\n")
    with pytest.raises(ConfigError, match="s3 has left the training"):
        roll_back(sites.folders(), 8)
    (sites.folder / "s3" / "leave").unlink()
    assert [site_rounds(folder) for folder in sites.folders()] == found
    assert main(["rollback", str(sites.folder)]) == 0
    assert "all of them: 0, 8, 12, 14, 15, 16" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["lost", "altered", "another"])
def test_no_site_goes_back_if_one_has_a_damaged_checkpoint(tmp_path: Path, once: MemorySites, damage: str) -> None:
    sites = copied(once, tmp_path)
    found, kept = [site_rounds(folder) for folder in sites.folders()], sites.folder / "s3" / "kept"
    (state,) = (kept / "8").glob("*.safetensors")
    whole = state.read_bytes()
    state.unlink()
    if damage == "altered":
        state.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "another":
        shutil.rmtree(kept / "8")
        shutil.copytree(kept / "12", kept / "8")
    words = {"lost": "is missing", "altered": "is damaged", "another": "is not a checkpoint of round 8"}
    with pytest.raises(CheckpointError, match=rf"{words[damage]}.*; go back to another round: 0, 12"):
        roll_back(sites.folders(), 8)
    assert [site_rounds(folder) for folder in sites.folders()] == found
    roll_back(sites.folders(), 12)
    assert {site_rounds(folder).reached for folder in sites.folders()} == {12}


def test_a_site_that_has_lost_its_last_checkpoint_can_go_back(tmp_path: Path, once: MemorySites) -> None:
    sites = copied(once, tmp_path)
    (sites.folder / "s1" / "run" / "checkpoint.json").unlink()
    roll_back(sites.folders(), 8)
    train(sites)


def test_an_interrupted_rollback_is_completed_by_the_same_command(tmp_path: Path, once: MemorySites) -> None:
    sites = copied(once, tmp_path)
    folders = sites.folders()
    roll_back(folders[:2], 8)
    write_rollbacks(folders[3], Pending(NONE.next(8), True, 16))  # and then the machine crashed
    sites.start("s3")
    with pytest.raises(ConfigError, match="was interrupted; complete it"):
        sites.end("s3")
    with pytest.raises(ConfigError, match="the rollback to round 8 is not complete"):
        roll_back(folders[3:], 12)
    roll_back(folders, 8)
    assert {read_rollbacks(folder) for folder in folders} == {Pending(Rollbacks().next(8), False, 16)}
    assert roll_back(folders, 8) == []  # nothing to do
    train(sites)


def test_a_site_that_was_left_out_comes_back_with_the_others_model(tmp_path: Path) -> None:
    sites = trained(tmp_path, {**SHORT, "rounds": 24})
    roll_back(sites.folders("s0", "s1", "s2"), 16)
    sites.start("s0", "s1", "s2")
    sites.start("s3", rejoin=True)
    with pytest.raises(RollbackError, match="s3 was not rolled back, and the training of its neighbours was rolled"):
        sites.end("s3")
    folder = sites.folder / "s3"
    sites.start("s3")  # somebody stops it before it has come back, and starts it as always
    with pytest.raises(ConfigError, match=r"from before its neighbours were rolled back; start .* --rejoin"):
        sites.end("s3")
    with pytest.raises(ConfigError, match="from before its neighbours were rolled back"):
        roll_back([folder], 16)
    (folder / "kept" / "24").rename(folder / "kept" / "17")  # of the rounds that its neighbours have discarded
    sites.start("s3", rejoin=True)
    for name in sites.names:
        assert sites.end(name).rounds == 24
    assert read_rollbacks(folder)[:2] == (Rollbacks().next(16), False)
    assert not read_rollbacks(folder).rejoins
    assert 0 not in available(folder)
    assert 17 not in available(folder)
    check_records(sites.folders())


@pytest.mark.parametrize("liars", [1, 2])
def test_neighbours_that_disagree_about_rollbacks_change_nothing(tmp_path: Path, once: MemorySites, liars: int) -> None:
    sites = copied(once, tmp_path)
    told = [NONE.next(4), Rollbacks(0xFFFF, 2**31, 7)]
    for name, rollbacks in zip(("s0", "s2"), told[:liars], strict=False):
        write_rollbacks(sites.folder / name, Pending(rollbacks, False, 16))
    sites.start("s0", "s2")
    sites.start("s3", rejoin=True)
    words = "s3 do not agree how" if liars == 1 else "s3 was not rolled back, and the training of its neighbours .* 4"
    with pytest.raises((ConfigError, RollbackError), match=words):
        sites.end("s3", "s0", "s2")
    assert read_rollbacks(sites.folder / "s3") == (Pending() if liars == 1 else Pending(told[0], True, 16, True))


def test_rollbacks_that_cannot_be() -> None:
    assert not Rollbacks(1, 16, 0).is_possible(16)
    assert not Rollbacks(0, 3, 0).is_possible(16)
    assert NONE.next(15).is_possible(16)
    with pytest.raises(ConfigError, match="more than 65,535 times"):
        Rollbacks(0xFFFF, 3, 4).next(2)
    assert len({NONE.key, *(NONE.next(to).key for to in range(50))}) == 51
    assert NONE.key == 0


def test_an_account_refuses_a_round_after_the_end(tmp_path: Path) -> None:
    SiteAccount(tmp_path, range(31), resumes=False).secret(5)
    before = (tmp_path / "privacy.json").read_bytes()
    with pytest.raises(ConfigError, match="was rolled back to round 2147483648, but the training ends before"):
        SiteAccount(tmp_path, range(31), resumes=True, rollbacks=1, rolled_to=2**31)
    assert (tmp_path / "privacy.json").read_bytes() == before


def test_links_are_those_of_the_round_but_who_left_stays_away(tmp_path: Path) -> None:
    write_links(tmp_path, {1: 60, 2: 10}, {3: 50, 4: 55, 5: 20}, [3, 5])
    links_before(tmp_path, 40)
    found = json.loads((tmp_path / "links.json").read_text())
    assert found == {"since": {"2": 10}, "lost": {"3": 40, "5": 20}, "left": [3, 5]}
    links_before(tmp_path, 40)
    assert json.loads((tmp_path / "links.json").read_text()) == found
