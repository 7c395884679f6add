"""What the page of `netfleet watch` is told, and how little is read for it."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from scipy.spatial import cKDTree

from netfleet.cli import main
from netfleet.errors import ConfigError
from netfleet.report.looks import looks
from netfleet.watch.news import AXES, COLUMNS, POINTS, Have, News, Query, cut
from netfleet.watch.pictures import LINKS, picture_of
from netfleet.watch.run_source import FRESH, RunSource
from netfleet.watch.site_source import ALL, SiteSource
from netfleet.watch.tail import Tail
from support.watched import NAMES, add_rounds, kill, made_by, record, site, start_run

# ---- reading ----


def test_a_growing_file_is_read_once_and_in_whole_lines(tmp_path: Path) -> None:
    path, tail = tmp_path / "a.jsonl", Tail(tmp_path / "a.jsonl")
    assert not tail.refresh()
    with open(path, "ab", buffering=0) as file:
        for k in range(20):
            file.write(json.dumps({"k": k}).encode() + b"\n")
            assert tail.refresh()
            assert not tail.refresh()
            assert [line["k"] for line in tail.lines] == list(range(k + 1))
        assert tail.read == path.stat().st_size
        file.write(b'{"k": ')
        assert not tail.refresh()
        file.write(b"20}\n")
        assert tail.refresh()
        assert tail.lines[-1] == {"k": 20}


def test_a_file_that_was_replaced_or_cut_is_read_again(tmp_path: Path) -> None:
    path, tail = tmp_path / "a.jsonl", Tail(tmp_path / "a.jsonl")
    path.write_text('{"k": 0}\n{"k": 1}\n')
    tail.refresh()
    before = tail.epoch
    (tmp_path / "new").write_text('{"k": 5}\n')
    (tmp_path / "new").replace(path)
    assert tail.refresh()
    assert tail.lines == [{"k": 5}]
    path.write_text("")
    assert tail.refresh()
    assert tail.lines == []
    assert tail.epoch > before + 1


def test_many_viewers_read_as_much_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start_run(tmp_path)
    add_rounds(run, 0, 10)
    source, opened = RunSource(tmp_path), list[str]()
    monkeypatch.setattr("builtins.open", _counted(open, opened))
    for _ in range(30):
        source.news(Query())
    monkeypatch.undo()
    assert run.folder is not None
    assert sorted(opened) == [str(run.folder / name) for name in ("history.jsonl", "workers.jsonl")]


def _counted(really: Callable[..., Any], opened: list[str]) -> Callable[..., Any]:
    def count(path: Any, *arguments: Any, **named: Any) -> Any:
        if str(path).endswith(".jsonl"):
            opened.append(str(path))
        return really(path, *arguments, **named)

    return count


# ---- curves ----


@pytest.mark.parametrize("together", [1, 40])
def test_a_page_that_is_told_what_is_new_has_the_thinned_history(together: int) -> None:
    records, have, kept = list[dict[str, Any]](), Have(), dict[str, list[float | None]]()
    most = max(POINTS // together, 100)
    for size in (1, 2, 50, 101, 3999, 4001, 4002, 9000):
        records = [record(t) for t in range(size)]
        curve = cut(records, 7, have, together)
        if curve.start == 0:
            kept = {name: [] for name in curve.columns}
        for name, values in curve.columns.items():
            kept[name] += values
        have = Have(7, curve.stride, len(kept["round"]))
        assert kept["round"] == [float(t) for t in range(0, size, curve.stride)]
        assert kept["accuracy"] == [records[t]["accuracy"] for t in range(0, size, curve.stride)]
        assert curve.last["loss"] == records[-1]["loss"]
        assert len(kept["round"]) <= most
        assert size <= most or len(kept["round"]) >= most / 2 - 1
    assert cut(records, 7, have, together).columns["round"] == []  # nothing new
    assert cut(records, 8, have, together).start == 0  # another file


def test_what_json_cannot_say_is_left_out() -> None:
    curve = cut([{"round": 0, "loss": float("inf")}, {"round": 1, "loss": 1.0, "accuracy": None}], 0, Have(), 1)
    assert curve.columns == {"round": [0.0, 1.0], "loss": [None, 1.0]}
    assert set(curve.columns) <= {*AXES, *COLUMNS}


# ---- runs ----


def news(folder: Path, query: Query = Query()) -> News:  # noqa: B008
    return RunSource(folder).news(query)


def test_how_a_run_goes_and_how_it_ended(tmp_path: Path) -> None:
    assert news(tmp_path).state == "waiting"
    assert "has no run yet; this page waits for one" in news(tmp_path).words[0]
    run = start_run(tmp_path)
    with made_by(tmp_path):
        assert news(tmp_path).state == "running"  # before its first evaluation
        add_rounds(run, 0, 20)
        found = news(tmp_path)
        assert found.state == "running"
        assert found.words == ["NET-FLEET, seed 0 running: round 20 of 40; 0.25 s per round, 5 s left"]
    assert news(tmp_path).state == "stopped"
    kill(tmp_path)
    assert news(tmp_path).words[0] == "NET-FLEET, seed 0 died: round 20 of 40; its process is gone"
    with pytest.raises(RuntimeError), made_by(tmp_path):
        raise RuntimeError("out of memory")
    assert "its process ended with RuntimeError: out of memory" in news(tmp_path).words[0]
    run.mark_diverged("loss is not finite", durable=True)
    assert news(tmp_path).words[0] == "NET-FLEET, seed 0 diverged: round 20 of 40; loss is not finite"
    run.keep_until(20)
    add_rounds(run, 21, 40)
    assert news(tmp_path).state == "done"


def test_of_several_runs_the_one_that_grows_is_followed(tmp_path: Path) -> None:
    first, second = start_run(tmp_path), start_run(tmp_path, "DSGD", 3)
    add_rounds(first, 0, 40)
    add_rounds(second, 0, 10, workers=False)
    with made_by(tmp_path):
        found = news(tmp_path)
    assert found.selected == "dsgd-seed3"
    assert found.words[1] == "2 runs: 1 done, 1 running"  # in the order in which they began
    styles = looks(["NET-FLEET", "DSGD"])  # as in a report
    assert [each.colour for each in found.series] == [styles["NET-FLEET"].color, styles["DSGD"].color]
    assert "does not write down its workers" in found.words[2]
    rows = {row[0]: dict(zip(found.moment.heads, row, strict=True)) for row in found.moment.rows}
    assert {label: row["round"] for label, row in rows.items()} == {"DSGD, seed 3": 10, "NET-FLEET, seed 0": 10}
    assert rows["DSGD, seed 3"]["Loss of x̄"] == record(10, 0.1 * 3)["loss"]
    assert news(tmp_path / "net-fleet-seed0").selected == "net-fleet-seed0"  # one run's folder


def test_the_graph_has_the_workers_of_the_chosen_round(tmp_path: Path) -> None:
    add_rounds(start_run(tmp_path), 0, 20, 2)
    source = RunSource(tmp_path)
    found = source.news(Query(index=3))
    assert (found.round, found.colours.round) == (6, 6)
    assert found.colours.nodes["accuracy"] == pytest.approx([0.5 + 0.01 * i + 6 / 1000 for i in range(5)])
    assert [row[0] for row in found.nodes.rows] == ["0", "1", "2", "3", "4"]
    drawn = source.picture(found.graph)
    assert sorted(map(tuple, drawn.ends)) == [(0, 1), (0, 4), (1, 2), (2, 3), (3, 4)]
    assert source.news(Query(index=999)).round == 20


def test_of_a_large_graph_nodes_stay_apart_and_links_are_thinned() -> None:
    drawn = picture_of(nx.gnp_random_graph(1000, 0.02, seed=1), [str(i) for i in range(1000)])
    places = np.stack([drawn.x, drawn.y], axis=1)
    nearest = cKDTree(places).query(places, k=2)[0][:, 1]
    assert nearest.min() > 0.5 / np.sqrt(1000)  # of a disc of radius 1, so much for each at best: 1.9 / √1000
    assert len(set(drawn.ends)) == LINKS
    assert drawn.words.startswith("4,000 of its ")


# ---- sites ----


def told(folder: Path, *answers: Any) -> tuple[SiteSource, News]:
    asked = threading.Event()

    def ask() -> Any:
        asked.set()
        return answers

    source = SiteSource(folder, ask)
    source.news(Query())
    assert asked.wait(10)
    until = time.monotonic() + 10
    while not (found := source.news(Query())).nodes.rows and time.monotonic() < until:
        time.sleep(0.01)
    return source, found


def test_sites_have_their_state_lag_privacy_waits_and_alarms(tmp_path: Path) -> None:
    source, found = told(tmp_path, site(0, 9, "waiting", waits=2), site(1, 9, alarm=True), site(2, 7))
    rows = {str(row[0]): dict(zip(found.nodes.heads, row, strict=True)) for row in found.nodes.rows}
    assert rows["north"]["waits for"] == "south, for 7 s"
    assert rows["east"]["alarms"] == "loss, since round 3"
    assert [rows[name]["lag"] for name in NAMES] == [0, 0, 2]
    assert [rows[name]["ε"] for name in NAMES] == [1.5, 2.5, 3.5]
    assert found.colours.node_marks == {1: "alarm: loss, since round 3"}
    ends = source.picture(found.graph).ends
    assert {tuple(ends[j]): words for j, words in found.colours.link_marks.items()} == {
        (0, 2): "waits for south, which has not answered"
    }
    assert max(value or 0 for value in found.colours.links["bytes"]) == 9000 + 2 + 50
    assert found.words[0] == "NET-FLEET: rounds 7 to 9 of 40; 1 waiting, 2 training; 1 min left"


def test_the_sum_over_all_sites_has_a_curve(tmp_path: Path) -> None:
    _, found = told(tmp_path, site(0, 9), site(1, 9), site(2, 9))
    assert found.curves[ALL].last["tracking_error"] == pytest.approx(0.0)  # -0.5 + 0 + 0.5
    assert found.curves[ALL].last["round"] == 9
    assert found.state == "running"


def test_sites_that_are_done_or_silent_are_shown_so(tmp_path: Path) -> None:
    assert told(tmp_path, *(site(i, 40, "finished") for i in range(3)))[1].state == "done"
    silent = site(0, 0)._replace(status=None, why="cannot be reached")
    _, found = told(tmp_path, silent, site(1, 4))
    assert "1 without an answer" in found.words[0]
    assert found.nodes.rows[0][:2] == ["north", "no answer"]


@pytest.mark.parametrize(("rounds", "state"), [(40, "done"), (60, "waiting")])
def test_sites_that_do_not_answer_have_ended_if_their_histories_have(tmp_path: Path, rounds: int, state: str) -> None:
    for name in NAMES:
        (tmp_path / name / "run").mkdir(parents=True)
        (tmp_path / name / "run" / "config.json").write_text(json.dumps({"config": {"rounds": rounds}}))
        (tmp_path / name / "run" / "history.jsonl").write_text('{"round": 40, "loss": 0.5}\n')
    silent = [site(i, 0)._replace(status=None, why="cannot be reached") for i in range(3)]
    _, found = told(tmp_path, *silent)
    assert (found.state, found.words[0]) == (state, "no site answers; the histories here end at round 40")
    ended = state == "done"
    assert found.nodes.rows[0][1] == ("ended" if ended else "no answer")
    assert found.colours.node_marks == ({} if ended else dict.fromkeys(range(3), "no answer"))


# ---- the server and the command ----


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("bokeh", reason="pip install 'netfleet[watch]'")
    from netfleet.watch.beside import listen, url
    from netfleet.watch.server import Pages, Server

    folder = tmp_path_factory.mktemp("served")
    add_rounds(start_run(folder), 0, 3)
    listening = listen("127.0.0.1", 0, 0)
    server = Server(Pages(RunSource(folder)), listening)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield url(listening)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("news.json", "127.0.0.1", 200),
        ("news.json?index=x", "127.0.0.1", 400),
        ("news.json?have=3", "127.0.0.1", 400),
        ("../pyproject.toml", "127.0.0.1", 404),
        ("", "localhost:1", 200),
        ("", "evil.example", 403),  # whose name an attacker lets resolve to this machine
    ],
)
def test_the_server_answers_its_own_page_only(served: str, path: str, host: str, status: int) -> None:
    request = urllib.request.Request(served + path, headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = answer.status
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    except urllib.error.HTTPError as error:
        found = error.code
        error.close()
    assert found == status


def test_nothing_can_be_changed_through_the_page(served: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(served + "news.json", data=b"x", timeout=30)
    assert caught.value.code == 501
    caught.value.close()


def test_a_taken_port_is_an_error_or_another_is_used() -> None:
    from netfleet.watch.beside import listen

    with listen("127.0.0.1", 0, 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot serve at 127.0.0.1:{port}: the port is taken"):
            listen("127.0.0.1", port, 0)
        with listen("127.0.0.1", None, port) as other:
            assert other.getsockname()[1] != port
    with pytest.raises(ConfigError, match="0 to 65535, got 70000"):
        listen("127.0.0.1", 70_000, 0)


@pytest.mark.slow
def test_the_page_beside_a_run_ends_with_it(tmp_path: Path) -> None:
    pytest.importorskip("bokeh", reason="pip install 'netfleet[watch]'")
    from netfleet.watch.beside import listen, page_beside, url

    listening = listen("127.0.0.1", 0, 0)
    address = url(listening)
    with page_beside(tmp_path / "out", listening):
        with urllib.request.urlopen(address + "news.json", timeout=120) as answer:
            assert json.load(answer)["state"] == "waiting"
        run = start_run(tmp_path / "out")
        add_rounds(run, 0, 3)
        time.sleep(FRESH)
        with urllib.request.urlopen(address + "news.json", timeout=120) as answer:
            assert json.load(answer)["round"] == 3
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=120)


def test_the_command_says_what_is_missing(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bokeh", reason="pip install 'netfleet[watch]'")
    assert main(["watch", str(tmp_path / "nothing")]) == 2
    assert "nothing does not exist; give the folder of results" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["watch"]) == 2
    assert "there is no folder below runs/ here" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["watch", str(tmp_path)]) == 2
    assert "watch needs bokeh, not installed here; pip install 'netfleet[watch]'" in capsys.readouterr().err
    assert main(["run", "--watch", "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'netfleet[watch]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
