"""Logs: lines that machines and people can read, whatever a hostile peer puts into them."""

from __future__ import annotations

import io
import json
import threading
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfleet.sites.operations import logs
from netfleet.sites.operations.logs import Log, kind_of_reason, sender


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_in_json() -> None:
    stream = io.StringIO()
    Log("lab", stream, as_json=True).event("round", t=3, loss=0.5, ended=None, rate=float("nan"), path=("a", 1))
    (line,) = lines(stream)
    assert datetime.fromisoformat(line.pop("time")).utcoffset().total_seconds() == 0  # type: ignore[union-attr]
    assert line == {
        "level": "info",
        "site": "lab",
        "event": "round",
        "t": 3,
        "loss": 0.5,
        "ended": None,
        "rate": "nan",
        "path": "('a', 1)",
    }


def test_an_event_for_people() -> None:
    stream = io.StringIO()
    Log("lab", stream).event("a neighbour is lost", level="warning", name="hospital a", t=3, why="")
    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert rest == 'warning lab: a neighbour is lost name="hospital a" t=3 why=""\n'


def test_the_default_is_standard_error(capsys: Any) -> None:
    Log("lab").event("begun")
    assert capsys.readouterr().err.endswith("info    lab: begun\n")


def test_a_refusal_is_said_once_and_always_counted() -> None:
    stream = io.StringIO()
    log = Log("lab", stream, as_json=True)
    for port in range(100):
        log.refused(f"C (ipv4:10.0.0.1:{port})", f"a frame of round {port}")
    log.refused("C (ipv4:10.0.0.1:1)", "a flood")
    assert [(line["event"], line["who"], line["why"]) for line in lines(stream)] == [
        ("refused", "C (10.0.0.1)", "a frame of round 0"),
        ("refused", "C (10.0.0.1)", "a flood"),
    ]
    assert log.refusals == {("C (10.0.0.1)", "a frame of round …"): 100, ("C (10.0.0.1)", "a flood"): 1}


def test_only_a_rejection_of_a_neighbour_may_wake_someone() -> None:
    stream = io.StringIO()
    log = Log("lab", stream, as_json=True, neighbours=["clinic"])
    for who in ("ipv4:10.0.0.1:1", "clinic (ipv4:10.0.0.1:1)", "clinic", "clinic2", "stranger (ipv4:10.0.0.1:1)"):
        log.refused(who, "a flood")
    assert [line["level"] for line in lines(stream)] == ["info", "warning", "warning", "info", "info"]


def test_memory_and_lines_are_bounded() -> None:
    stream = io.StringIO()
    log = Log("lab", stream, as_json=True)
    for number in range(100):
        log.refused("C", "x" * (number + 1))
    assert log.refusals["C", "others"] == 100 - logs.OF_ONE
    assert len(lines(stream)) == logs.OF_ONE + 1
    for number in range(5 * logs.IN_ALL):
        log.refused(f"ipv4:10.0.{number >> 8}.{number & 255}:1", "plaintext")
    assert log.refusals.total() == 100 + 5 * logs.IN_ALL
    assert len(log.refusals) == logs.IN_ALL + 1
    assert len(log._reasons) <= logs.IN_ALL
    noted = [number for number, line in enumerate(lines(stream)) if "note" in line]
    assert noted == [logs.OF_ONE, logs.IN_ALL]
    assert len(lines(stream)) == logs.IN_ALL + 1


@given(who=st.text(), why=st.text(max_size=600), site=st.text(max_size=5), as_json=st.booleans())
def test_a_line_stays_a_line(who: str, why: str, site: str, as_json: bool) -> None:
    stream = io.StringIO()
    log = Log(site, stream, as_json)
    log.refused(who, why)
    text = stream.getvalue()
    assert text.endswith("\n")
    assert text[:-1].isprintable()
    assert len(text) < 8 * logs.LONGEST
    if as_json:
        assert set(lines(stream)[0]) == {"time", "level", "site", "event", "who", "why"}


@pytest.mark.parametrize(
    ("who", "name"),
    [
        ("lab (ipv4:10.0.0.1:5555)", "lab (10.0.0.1)"),
        ("lab (ipv6:%5B::1%5D:5555)", "lab (::1)"),
        ("ipv6:[::ffff:10.0.0.1]:5555", "10.0.0.1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5", "fe80::1%eth0"),
        ("lab", "lab"),
        ("\x1b[2Jlab\n", "\ufffd[2Jlab\ufffd"),
    ],
)
def test_senders_have_no_port(who: str, name: str) -> None:
    assert sender(who) == name


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a frame of 3 bytes is truncated", "a frame of 17 bytes is truncated"),
        ("a frame of run 12ab, but this node's is 00ff", "a frame of run abcdefabcdef, but this node's is 00ff"),
        (
            "netfleet's bytes: they begin with b'GET ', not b'NTFL'",
            "netfleet's bytes: they begin with b'\\'\"x', not b''",
        ),
        ("of 'float32[3]' where 'float32[4]' was", "of 'where' where \"it's\" was"),
        ("a frame of round -1", "a frame of round 7"),
    ],
)
def test_reasons_of_one_kind(first: str, second: str) -> None:
    assert kind_of_reason(first) == kind_of_reason(second)


def test_reasons_of_two_kinds() -> None:
    assert kind_of_reason("a frame of 3 bytes is truncated") != kind_of_reason("a frame of 3 bytes is oversized")


def test_a_closed_stream_ends_nothing() -> None:
    stream = io.StringIO()
    log = Log("lab", stream)
    stream.close()
    log.event("begun")
    assert log.lost == 1


def test_threads_do_not_mix_their_lines() -> None:
    stream = io.StringIO()
    log = Log("lab", stream, as_json=True)

    def work(number: int) -> None:
        for t in range(50):
            log.event("round", t=t, number=number)
            log.refused("C", "a flood")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((line["number"], line["t"]) for line in lines(stream) if line["event"] == "round") == [
        (number, t) for number in range(4) for t in range(50)
    ]
    assert log.refusals.total() == 200
