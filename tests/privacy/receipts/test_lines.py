"""Lines of a record: there is one way to write each, and every altered byte is found."""

from __future__ import annotations

import hashlib
import json
import string
from datetime import UTC, datetime
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfleet.errors import RecordError
from netfleet.privacy.receipts.lines import KINDS, NOTHING, Ended, Entry, Event, Sent, What, decode, encode

NOW = datetime(2027, 1, 31, 9, 15, 2, 123456, tzinfo=UTC)
texts = st.text(max_size=20) | st.text(string.printable, max_size=20)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    int: st.integers(-1, 2**63),
    float | None: st.none() | st.floats(0, allow_nan=False, allow_infinity=False),
    str | None: st.none() | texts,
    tuple[str, ...]: st.lists(texts, max_size=3).map(tuple),
    What: st.sampled_from(get_args(What)),
    Event: st.sampled_from(get_args(Event)),
}


def some(kind: type[Entry]) -> st.SearchStrategy[Entry]:
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name != "kind"}
    return st.builds(kind, **{name: VALUES[hint] for name, hint in hints.items()})


anything = st.sampled_from(sorted(KINDS)).flatmap(lambda kind: some(KINDS[kind]))
times = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


@settings(max_examples=300)
@given(anything, st.integers(1, 10**9), times)
def test_a_line_comes_back_as_it_was(entry: Entry, number: int, time: datetime) -> None:
    line, data = encode(number, NOTHING, time, entry)
    assert decode(data) == line
    assert line.size == len(data)
    assert data.isascii()
    assert data.count(b"\n") == 1


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_says_what_it_is(kind: str) -> None:
    table = json.loads(encode(1, NOTHING, NOW, _example(KINDS[kind]))[1])
    assert table["kind"] == kind
    assert list(table)[:4] == ["line", "previous", "time", "kind"]
    assert list(table)[-1] == "hash"
    assert table["time"] == "2027-01-31T09:15:02.123456Z"


def _example(kind: type[Entry]) -> Entry:
    plain = {str: "a", int: 1, float | None: 0.5, str | None: None, tuple[str, ...]: ("a", "b")}
    plain |= {What: "message", Event: "lost"}
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name != "kind"}
    return kind(**{name: plain[hint] for name, hint in hints.items()})


SENT = Sent("message", ("b", "c"), 3, 0, 28, "float32[7]", "ab" * 32, 1.5, None)


def test_every_altered_bit_of_a_line_is_found() -> None:
    _, data = encode(7, NOTHING, NOW, SENT)
    for place in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[place // 8] ^= 1 << place % 8
        with pytest.raises(RecordError):
            decode(bytes(wrong))


def sealed(text: str) -> bytes:
    """A line with the right hash, whatever it says."""
    start = text.encode()
    return start + b',"hash":"' + hashlib.sha256(start).hexdigest().encode() + b'"}\n'


START = f'{{"line":1,"previous":"{NOTHING}","time":"2027-01-31T09:15:02.123456Z"'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1",
        START,
        f'{START},"kind":"nothing"',
        f'{START},"kind":["ended"]',
        f'{START},"kind":"ended"',
        f'{START},"kind":"ended","why":3',
        f'{START},"kind":"ended","why":"a","more":1',
        f'{START},"kind":"ended","why":"a","why":"a"',
        f'{START}, "kind":"ended","why":"a"',
        f'{START},"kind":"ended","why":"ä"',
        START.replace(":1,", ":1.0,") + ',"kind":"ended","why":"a"',
        START.replace("2027", "27") + ',"kind":"ended","why":"a"',
        START.replace('"line":1,', "") + ',"kind":"ended","why":"a"',
        '{"why":"a",' + START[1:] + ',"kind":"ended"',
        "[" * 100_000,
    ],
)
def test_what_netfleet_does_not_write_is_refused_though_its_hash_is_right(text: str) -> None:
    with pytest.raises(RecordError):
        decode(sealed(text))
    assert decode(sealed(f'{START},"kind":"ended","why":"a"')).entry == Ended("a")  # so the hash is not the reason


@settings(max_examples=300)
@given(anything, st.integers(0, 1000), st.integers(0, 4), st.binary(max_size=4) | texts.map(str.encode))
def test_any_bytes_are_taken_or_refused(entry: Entry, place: int, cut: int, put: bytes) -> None:
    """A changed line is refused; with a new hash, it is taken only if netfleet could have written it like that."""
    _, data = encode(1, NOTHING, NOW, entry)
    start, mark, end = data.rpartition(b',"hash":"')
    place %= len(start)
    changed = start[:place] + put + start[place + cut :]
    if changed != start:
        with pytest.raises(RecordError):
            decode(changed + mark + end)
    forged = changed + mark + hashlib.sha256(changed).hexdigest().encode() + b'"}\n'
    try:
        line = decode(forged)
    except RecordError:
        assert changed != start
    else:
        assert encode(line.number, line.previous, line.time, line.entry) == (line, forged)
