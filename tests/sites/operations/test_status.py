"""What `netfleet status` says of the answers that it gets."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from rich.console import Console

from netfleet.cli import _parser
from netfleet.errors import ConfigError, TransportError
from netfleet.sites.operations.status import (
    SUMS,
    LinkStatus,
    SiteStatus,
    Sketch,
    StatusAnswer,
    WaitStatus,
    parse_status,
)
from netfleet.sites.operations.status_table import cause_lines, components, print_json, print_status
from netfleet.sites.operations.status_watch import watch
from netfleet.sites.policy.settings import ShowRules

#: Of five sites on a path.
NAMES = ("north", "east", "south", "west", "hospital-of-a-longer-name")


def sketch(t: int, first: float) -> Sketch:
    return Sketch(t, (first, *[0.0] * (SUMS - 1)))


def answer(number: int, lost: tuple[int, ...] = (), **changes: Any) -> SiteStatus:
    """The status of a site."""
    links = tuple(
        LinkStatus(
            name=NAMES[j],
            number=j,
            round=8,
            lag=0,
            heard=0.1,
            waiting="",
            lost=5 if j in lost else None,
            there=j not in lost,
            sent=123_400_000,
            received=123_400_000,
        )
        for j in (number - 1, number + 1)
        if 0 <= j < len(NAMES)
    )
    status = SiteStatus(
        site=NAMES[number],
        number=number,
        run="ab" * 32,
        algorithm="NET-FLEET",
        state="training",
        round=1234,
        rounds=9999,
        seconds=12.5,
        bytes=100,
        record={"round": 1200, "accuracy": 0.98765, "consensus_error": None},
        neighbours=links,
        known={str(i): 8 for i in range(len(NAMES))},
        apart=(),
        refused=1000,
        certificate_days=3650,
        sketches=(sketch(8, float(number - 2)),),
        round_seconds=12.0,
        left_seconds=12.0 * (9999 - 1234),
        revocations=2,
    )
    return replace(status, **changes)


def said(answers: dict[int, SiteStatus]) -> list[StatusAnswer]:
    return [StatusAnswer(name, answers.get(i), "cannot be reached (x)") for i, name in enumerate(NAMES)]


def printed(answers: dict[int, SiteStatus], width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_status(said(answers), console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_the_table_fits_a_terminal() -> None:
    lines = printed({i: answer(i) for i in range(5)})
    rows = [line for line in lines if line.startswith(NAMES[:4])]
    assert lines[0].split() == ["site", "state", "round", "pace", "left", "accuracy", "at", "refused", "cert."]
    assert [row.split()[1:] for row in rows] == [
        ["training", "1234/9999", "12", "s", "29", "h", "13", "min", "98.8", "%", "1200", "1000", "3650", "d"]
    ] * 4
    assert max(map(len, rows)) <= 80
    wide = printed({i: answer(i) for i in range(5)}, width=120)
    assert wide[0].split()[-2:] == ["sent", "received"]
    assert all(line.endswith("246.8 MB 246.8 MB") for line in wide[2:5])


def test_the_sum_over_all() -> None:
    lines = printed({i: answer(i) for i in range(5)})
    assert lines[-1] == "‖Σ(y − g)‖ = 0.00e+00 after round 8 over 5 sites, where Σ‖y − g‖ = 6."


def test_the_sum_over_some_is_not_shown(capsys: Any) -> None:
    some = {i: answer(i) for i in (0, 1, 2)}
    lines = printed(some)
    assert lines[-1].endswith("there is no answer from west.")
    assert "west: cannot be reached (x)" in lines
    print_json(said(some))
    assert json.loads(capsys.readouterr().out)["invariant"] is None


def test_a_site_that_cannot_be_dialled_has_a_line() -> None:
    status = answer(1, no_inbound=("south",))
    assert "east: south cannot dial it; see event no_inbound" in printed({1: status})
    assert status.for_neighbour("south", ShowRules()).no_inbound == ()  # who else reaches a site is not its business


def test_two_groups_have_a_sum_each() -> None:
    """After the third of five on a path is lost."""
    lost = {
        0: answer(0, apart=("site 2", "site 3", "site 4"), sketches=(sketch(8, 1.0),)),
        1: answer(1, lost=(2,), apart=("south", "site 3", "site 4"), sketches=(sketch(8, -1.0),)),
        3: answer(3, lost=(2,), apart=("site 0", "site 1", "south"), sketches=(sketch(9, 2.0),)),
        4: answer(4, apart=("site 0", "site 1", "site 2"), sketches=(sketch(9, 2.0),)),
    }
    lines = printed(lost)
    assert "east: without south since round 5" in lines
    assert f"north: no longer connected to south, west, {NAMES[4]}" in lines
    assert f"east: no longer connected to west, {NAMES[4]}" in lines
    assert lines[-3] == "‖Σ(y − g)‖ = 0.00e+00 after round 8 over 2 sites (east, north), where Σ‖y − g‖ = 2."
    assert lines[-2].startswith("‖Σ(y − g)‖ = 4.00e+00 after round 9 over 2 sites (")
    assert lines[-1].endswith(f"no longer reach each other: east, north; {NAMES[4]}, west")


def test_sites_that_do_not_answer_are_not_a_gap() -> None:
    some = [answer(i) for i in (0, 2, 4)]
    assert components(some) == [sorted(NAMES)]


def test_for_which_neighbour_a_site_waits() -> None:
    first = answer(0)
    waits = replace(first, neighbours=(replace(first.neighbours[0], waiting="is in round 3", heard=None),))
    lines = printed({i: waits if i == 0 else answer(i) for i in range(5)})
    assert "north: waits for east, which is in round 3; never heard from" in lines


def waits_for(number: int, cause: int, seconds: float = 41.0, silent: bool = True) -> SiteStatus:
    """A site that waits, and knows the cause by its name only if it is a neighbour."""
    name = NAMES[cause] if abs(number - cause) < 2 else f"site {cause}"
    return answer(number, state="waiting", wait=WaitStatus(seconds, cause, name, silent, seconds))


def test_the_site_that_all_wait_for_is_named() -> None:
    """north waits for east, east for south, south for west, which is silent."""
    lines = printed({i: waits_for(i, 3, 40.0 + i) for i in range(3)} | {4: waits_for(4, 3)})
    assert "All wait for west, which has been silent for 42 s." in lines


def test_two_causes_have_a_sentence_each() -> None:
    slow = waits_for(4, 3, 200.0, silent=False)
    lines = cause_lines([waits_for(0, 1), waits_for(2, 1), answer(1), answer(3), slow])
    assert lines == [
        "north, south wait for east, which has been silent for 41 s.",
        f"{NAMES[4]} waits for west, which has been computing for 3 min.",
    ]


def test_a_site_that_holds_does_not_compute() -> None:
    lines = cause_lines([waits_for(0, 1, silent=False), answer(1, state="holding")])
    assert lines == ["north waits for east, which has been holding after an alarm for 41 s."]


def test_a_site_that_its_neighbour_cannot_reach_is_told_so() -> None:
    lines = cause_lines([waits_for(0, 0), answer(1)])
    assert lines == ["north waits for a neighbour that cannot reach it, for 41 s."]


def test_a_cause_that_nobody_knows_by_name_keeps_its_number() -> None:
    assert cause_lines([waits_for(0, 77)]) == ["north waits for site 77, which has been silent for 41 s."]


# ---- again and again ----


def screen() -> Console:
    return Console(file=io.StringIO(), width=100, height=30, force_terminal=True, color_system="standard")


def test_the_table_is_shown_until_ctrl_c_and_then_stays() -> None:
    console, pauses = screen(), list[float]()
    answers = [said({i: answer(i) for i in range(5)}), said({i: waits_for(i, 3) for i in range(3)})]

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    assert watch(lambda: answers[len(pauses)], console, 2.0, pause) == 1  # two sites do not answer
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert pauses == [2.0, 2.0]
    assert "\x1b[33mwaiting" in text
    assert "\x1b[31mno answer" in text
    left = text[text.rindex("\x1b[?1049l") :]  # after the alternate screen, on the terminal's own
    assert "All wait for west" in left


def test_ctrl_c_before_the_first_answer_ends_it_too() -> None:
    def ask() -> list[StatusAnswer]:
        raise KeyboardInterrupt

    assert watch(ask, screen()) == 0


def test_watching_needs_a_terminal() -> None:
    with pytest.raises(ConfigError, match="--watch needs a terminal"):
        watch(list, Console(file=io.StringIO()))


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "x"])
def test_a_pause_that_makes_no_sense_is_rejected(seconds: str) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["status", "plan", f"--watch={seconds}"])


def rejected(data: object) -> bool:
    try:
        parse_status(json.dumps(data).encode(), "east")
    except TransportError as error:
        assert "not this site's status" in str(error)  # noqa: PT017
        return True
    return False


def test_a_status_survives_its_journey() -> None:
    status = answer(1, apart=("site 7",), wait=WaitStatus(1.0, 7, "site 7", True, 9.0))
    assert parse_status(status.to_json().encode(), "east") == status
    extended = {**asdict(status), "more": 1}
    assert parse_status(json.dumps(extended).encode(), "east") == status  # of a later version


def test_answers_are_checked() -> None:
    good = asdict(answer(1))
    assert not rejected(good)
    waiting = asdict(waits_for(1, 3))
    assert not rejected(waiting)
    for field in fields(WaitStatus):
        assert rejected({**waiting, "wait": {**waiting["wait"], field.name: []}}), field
    assert all(map(rejected, (None, [], "east", {}, {**good, "site": "west"})))
    for field in fields(SiteStatus):
        assert rejected({k: v for k, v in good.items() if k != field.name}), field
        assert rejected({**good, field.name: [["x"]]}), field
    for field in fields(LinkStatus):
        assert rejected({**good, "neighbours": [{**good["neighbours"][0], field.name: []}]}), field
    assert rejected({**good, "sketches": [[8, [1.0]]]})
    assert rejected({**good, "record": {"accuracy": "1"}})
    assert rejected({**good, "known": {"1": "1"}})


@pytest.mark.parametrize("data", [b"", b"\xff", b"{", b"[" * 100_000])
def test_what_is_not_json_is_not_a_status(data: bytes) -> None:
    with pytest.raises(TransportError, match="not JSON"):
        parse_status(data, "east")


def test_texts_of_answers_cannot_steer_a_terminal() -> None:
    bad = answer(0, state="\x1b[2J[red]", apart=("\x1b[2J",), algorithm="\n", record={"\x1b": None})
    cleaned = parse_status(bad.to_json().encode(), "north")
    lines = printed({0: cleaned})
    assert "\x1b" not in "".join(lines)
    assert "\x1b" not in "".join(cleaned.record)
    assert any("[red]" in line for line in lines)


def test_neighbours_say_nothing_of_the_sum() -> None:
    """A neighbour sees of a site's links only its own."""
    some = {0: answer(0), 1: answer(1, apart=("site 7",)).for_neighbour("north", ShowRules())}
    assert [link.name for link in some[1].neighbours] == ["north"]
    assert some[1].apart == ()
    assert "Σ(y − g): nothing from east; sites tell only the operator, after their first round." in printed(some)


def test_nobody_answers() -> None:
    assert printed({})[-1].startswith("No site answered")


def test_a_method_without_tracking() -> None:
    lines = printed({i: answer(i, sketches=(), algorithm="DSGD") for i in range(5)})
    assert lines[-1] == "No Σ(y − g): DSGD tracks no gradient, or no site here has told (only the operator is)."


def test_sites_with_an_older_revocation_list_are_named() -> None:
    lines = printed({0: answer(0), 1: answer(1, revocations=1), 2: answer(2, revocations=0)})
    found = [line for line in lines if "revocation" in line]
    assert found == ["east: has revocation list 1, not 2", "south: has revocation list none, not 2"]
