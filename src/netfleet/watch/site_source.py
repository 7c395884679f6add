"""Sites over a network as the page shows them: from their answers to `netfleet status`, and from histories here.

The sites are asked by one thread, and only while somebody looks at the page.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import networkx as nx

from netfleet.errors import NetfleetError
from netfleet.runs.history import CONFIG_FILE, HISTORY_FILE, Record
from netfleet.runs.history import in_words as column_in_words
from netfleet.runs.progress import in_words
from netfleet.sites.operations.status import LinkStatus, SiteStatus, StatusAnswer, ask_folder
from netfleet.sites.operations.status_table import invariant, missing, status_lines
from netfleet.sites.planning.folders import RUN_FOLDER, SITE_FILE
from netfleet.watch.news import (
    COLUMNS,
    Cell,
    Colours,
    Curve,
    Grid,
    Have,
    News,
    Picture,
    Query,
    Series,
    coloured,
    cut,
    number,
    other_columns,
)
from netfleet.watch.pictures import picture_of
from netfleet.watch.run_source import at
from netfleet.watch.tail import Tail

#: Seconds between two questions to the sites, and after which nobody looks any more.
PAUSE, IDLE = 2.0, 10.0
#: The series of ‖Σ(y − g)‖ over all sites.
ALL = "all sites"
Ask = Callable[[], Sequence[StatusAnswer]]
#: A site measures its own model, and knows nobody else's.
_CAPTIONS = {name: words for name, words in COLUMNS.items() if name != "worker_accuracy_mean"}
_CAPTIONS |= {"accuracy": "Accuracy of the site's model", "loss": "Loss of the site's model"}
_VALUES = ("accuracy", "loss", "epsilon")


class SiteRecords:
    """The evaluations of a site: those of its history, if its folder is here, else those that it has told."""

    def __init__(self, history: Path | None) -> None:
        self._tail, self._told = None if history is None else Tail(history), list[Record]()
        self._config = None if history is None else history.with_name(CONFIG_FILE)

    def note(self, record: Record) -> None:
        """The site has told an evaluation; after a rollback, earlier rounds come again."""
        if "round" in record and (not self._told or self._told[-1] != record):
            self._told = [each for each in self._told if each["round"] < record["round"]] + [record]

    def refresh(self) -> None:
        if self._tail is not None:
            self._tail.refresh()

    @property
    def records(self) -> Sequence[Record]:
        return self._tail.lines if self._tail is not None and self._tail.lines else self._told

    @property
    def ended(self) -> bool:
        """Whether the history is here and has the last round."""
        if self._tail is None or not self._tail.lines or self._config is None:
            return False
        try:
            rounds = json.loads(self._config.read_text())["config"]["rounds"]
        except (OSError, ValueError, KeyError):
            return False
        return int(self._tail.lines[-1]["round"]) >= int(rounds)

    @property
    def epoch(self) -> int:
        return 0 if self._tail is None or not self._tail.lines else self._tail.epoch


class SiteSource:
    """The sites of a plan's, the operator's or one site's folder."""

    def __init__(self, folder: Path, ask: Ask | None = None) -> None:
        self.folder, self._ask = folder, ask or (lambda: ask_folder(folder))
        self._records, self._total = dict[str, SiteRecords](), SiteRecords(None)
        self._answers: Sequence[StatusAnswer] = ()
        self._known, self._seen = dict[str, SiteStatus](), dict[str, float]()
        self._why, self._wanted, self._thread = "", 0.0, threading.Thread()

    def _follow(self) -> None:
        while time.monotonic() - self._wanted < IDLE:
            try:
                self._answers, self._why = self._ask(), ""
            except NetfleetError as error:
                self._why = str(error)
            time.sleep(PAUSE)

    def refresh(self) -> None:
        """Take in the last answers; ask on as long as somebody wants to know."""
        self._wanted = time.monotonic()
        if not self._thread.is_alive():
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()
        answers = self._answers
        for answer in answers:
            if answer.name not in self._records:
                self._records[answer.name] = SiteRecords(self._history(answer.name))
            if answer.status is not None:
                self._known[answer.name] = answer.status
                self._records[answer.name].note(dict(answer.status.record))
        for records in self._records.values():
            records.refresh()
        found = [answer.status for answer in answers if answer.status is not None]
        total = None if not found or missing(found) else invariant(found)
        if total is not None:
            self._total.note({"round": total.t, "tracking_error": total.norm})

    def _history(self, name: str) -> Path | None:
        own = (self.folder / SITE_FILE).is_file()
        path = (self.folder if own else self.folder / name) / RUN_FOLDER / HISTORY_FILE
        return path if path.exists() and (not own or not self._records) else None

    def news(self, query: Query) -> News:
        self.refresh()
        answers, every = self._answers, {**self._records, **({ALL: self._total} if self._total.records else {})}
        series = [self._series(answer) for answer in answers]
        if self._total.records:
            series.append(Series(ALL, ALL, ALL, "", "", int(self._total.records[-1]["round"]), 0))
        longest = max(self._records, key=lambda name: len(self._records[name].records), default="")
        selected = query.series if query.series in every else longest
        records = every[selected].records if selected else []
        index = max(len(records) - 1, 0) if query.index is None else min(query.index, max(len(records) - 1, 0))
        t = int(records[index]["round"]) if records else None
        names = list(self._records)
        return News(
            title=self.folder.resolve().name,
            state=self._state(answers),
            words=[self._summary(answers), *status_lines(answers)] if answers else [self._why or "Asks the sites …"],
            series=coloured(series),
            selected=selected,
            index=index,
            count=len(records),
            round=t,
            curves={name: self._cut(name, each, query, len(every)) for name, each in every.items()},
            captions=_CAPTIONS,
            moment=self._moment(t),
            graph="|".join([*names, *(f"{a}-{b}" for a, b in self._ends())]),
            colours=self._colours(t),
            nodes=self._sites(answers),
        )

    def picture(self, graph: str) -> Picture:
        names = list(self._records)
        drawn = nx.Graph(self._ends())
        drawn.add_nodes_from(range(len(names)))
        return picture_of(drawn, names) if names else Picture([], [], [], [])

    def _cut(self, name: str, records: SiteRecords, query: Query, together: int) -> Curve:
        return cut(records.records, records.epoch, query.have.get(name, Have()), together)

    def _series(self, answer: StatusAnswer) -> Series:
        status = self._known.get(answer.name)
        state = answer.status.state if answer.status is not None else self._unheard(answer)
        t, rounds = (0, 0) if status is None else (status.round, status.rounds)
        return Series(answer.name, answer.name, answer.name, state, state, t, rounds)

    def _state(self, answers: Sequence[StatusAnswer]) -> str:
        states = {answer.status.state if answer.status is not None else "" for answer in answers if not answer.left}
        if not states or states == {""}:
            ended = bool(self._records) and all(records.ended for records in self._records.values())
            return "done" if ended else "died" if self._known else "waiting"
        return "done" if states <= {"finished", "left"} else "running"

    def _summary(self, answers: Sequence[StatusAnswer]) -> str:
        found = [answer.status for answer in answers if answer.status is not None]
        if not found:
            return self._silence()
        states = [status.state for status in found]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        rounds = [status.round for status in found]
        words = f"{found[0].algorithm}: rounds {min(rounds)} to {max(rounds)} of {found[0].rounds}; {counts}"
        silent = sum(answer.missing for answer in answers)
        words += f", {silent} without an answer" if silent else ""
        left = [status.left_seconds for status in found if status.left_seconds]
        return words + (f"; {in_words(max(left))} left" if left else "")

    def _unheard(self, answer: StatusAnswer) -> str:
        """The state of a site that does not answer."""
        records = self._records.get(answer.name)  # none if the answer came just now
        ended = records is not None and records.ended
        return "left" if answer.left else "ended" if ended else "no answer"

    def _silence(self) -> str:
        if self._known:
            newest = max(status.round for status in self._known.values())
            return f"no site answers any more; the last that was heard is of round {newest}"
        if here := [int(each.records[-1]["round"]) for each in self._records.values() if each.records]:
            return f"no site answers; the histories here end at round {max(here)}"
        return "no site answers yet"

    def _ends(self) -> list[tuple[int, int]]:
        places = {name: i for i, name in enumerate(self._records)}
        return sorted({tuple(sorted((places[a], places[b]))) for a, b in self._links() if a in places and b in places})  # type: ignore[misc]

    def _links(self) -> dict[tuple[str, str], LinkStatus]:
        """Each end's view of its links, by the names of this end and the other."""
        return {(s.site, link.name): link for s in self._known.values() for link in s.neighbours}

    def _moment(self, t: int | None) -> Grid:
        """The records of all sites at the last evaluation up to round t."""
        rows = [(name, at(each.records, t)) for name, each in self._records.items()]
        names = [n for n in (*_CAPTIONS, "train_loss", "bytes") if any(r.get(n) is not None for _, r in rows)]
        names += other_columns((record for _, record in rows), [*names, *COLUMNS])
        cells = [[name, number(r.get("round")), *(number(r.get(column)) for column in names)] for name, r in rows]
        return Grid(["site", "round", *(_CAPTIONS.get(name) or column_in_words(name) for name in names)], cells)

    def _colours(self, t: int | None) -> Colours:
        records, names, links = (
            {n: at(each.records, t) for n, each in self._records.items()},
            list(self._records),
            self._links(),
        )
        nodes = {v: [number(records[n].get(v)) for n in names] for v in _VALUES}
        rounds = {"round": [float(self._known[n].round) if n in self._known else None for n in names]}
        marks = {i: words for i, name in enumerate(names) if (words := self._mark(name))}
        both = [[links.get((names[a], names[b])), links.get((names[b], names[a]))] for a, b in self._ends()]
        sent = [float(max(sum((x.sent, x.received)) for x in pair if x is not None)) for pair in both]
        broken = {j: words for j, pair in enumerate(both) if (words := _link_mark(pair))}
        known = {name: each for name, each in nodes.items() if any(value is not None for value in each)} | rounds
        return Colours(t, known, {"bytes": sent}, marks, broken)

    def _mark(self, name: str) -> str:
        answer = next((each for each in self._answers if each.name == name), None)
        if answer is None or answer.status is None:
            why = "no answer" if answer is None else self._unheard(answer)
            return {"left": "has left", "ended": ""}.get(why, why)
        alarms = "; ".join(str(alarm) for alarm in answer.status.alarms)
        return f"alarm: {alarms}" if alarms else ""

    def _sites(self, answers: Sequence[StatusAnswer]) -> Grid:
        newest = max((status.round for status in self._known.values()), default=0)
        heads = [
            "site",
            "state",
            "round",
            "lag",
            "s per round",
            "ε",
            "waits for",
            "alarms",
            "bytes sent",
            "bytes received",
        ]
        return Grid(heads, [self._row(answer, newest) for answer in answers])

    def _row(self, answer: StatusAnswer, newest: int) -> list[Cell]:
        status = answer.status
        if status is None:
            known = self._known.get(answer.name)
            place = [None, None] if known is None else [known.round, newest - known.round]  # when it last answered
            return [answer.name, self._unheard(answer), *place, *[None] * 6]
        waits = "" if status.wait is None else f"{status.wait.name}, for {in_words(status.wait.seconds)}"
        sent, received = (sum(getattr(link, way) for link in status.neighbours) for way in ("sent", "received"))
        return [
            answer.name,
            status.state,
            status.round,
            newest - status.round,
            number(status.round_seconds),
            number(status.record.get("epsilon")),
            waits,
            "; ".join(str(alarm) for alarm in status.alarms),
            sent,
            received,
        ]


def _link_mark(ends: Sequence[LinkStatus | None]) -> str:
    """What is wrong with a link, as one of its ends says."""
    for link in ends:
        if link is not None and (link.left or link.lost is not None):
            return "left" if link.left else f"lost since round {link.lost}"
        if link is not None and link.waiting:
            return f"waits for {link.name}, which {link.waiting}"
    return ""
