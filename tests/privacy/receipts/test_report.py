"""The page for a data-protection officer, and the result of an audit that it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from netfleet.algorithms import KGT, NetFleet
from netfleet.cli import main
from netfleet.engines.host import Tag
from netfleet.errors import ConfigError
from netfleet.privacy.receipts.audit_file import Attack, read_audit
from netfleet.privacy.receipts.contents import describe, read_method
from netfleet.privacy.receipts.record import RECORD_FILE
from netfleet.sites.runtime.receipts import PrivacyState
from support.receipts import RecordingSite, altered, exchange, message, start, two_sites


@pytest.fixture
def site(tmp_path: Path) -> RecordingSite:
    """s0 after two rounds; its neighbour has confirmed the first message."""
    a, b = two_sites(tmp_path)
    for t in range(2):
        exchange(a, b, Tag(t, 0))
        exchange(b, a, Tag(t, 0))
    a.receipts.note_status("operator", ["accuracy", "loss"])
    a.receipts.note_metrics("127.0.0.1:9400")
    a.receipts.note_change("lost", "s1", 2, "<b>has dropped this site</b>")
    a.receipts.sync()
    return a


def page(folder: Path, code: int = 0) -> str:
    out = folder / "page.html"
    assert main(["receipts", "report", str(folder), "--out", str(out)]) == code
    return " ".join(out.read_text(encoding="utf-8").split())


def test_the_page_says_who_saw_what(site: RecordingSite) -> None:
    text = page(site.folder)
    assert "<h1>What left s0</h1>" in text
    assert "No alteration was found" in text
    assert '<th scope="row">s1</th><td>messages of the rounds</td>' in text
    assert "<td>0 to 1</td>" in text
    assert '<td class="number">2</td><td class="number">1</td>' in text
    assert "1 of the things sent have no receipt" in text
    assert "round, links, bytes, accuracy, loss" in text
    assert "<code>127.0.0.1:9400</code>" in text
    assert "No differential privacy was counted." in text
    assert "No policy of the site's own was in force" in text
    assert "No audit was made" in text
    assert "was given up" in text
    assert "&lt;b&gt;has dropped this site&lt;/b&gt;" in text
    assert "src=" not in text  # it needs nothing from elsewhere
    assert "href=" not in text


def test_privacy_and_policy_are_shown(site: RecordingSite) -> None:
    again = start(site.folder, privacy=lambda: PrivacyState(1.25, "ab" * 32))
    again.receipts.offer_to_all(Tag(2, 0), message(2), ["s1"])
    text = page(site.folder)
    assert "<strong>ε = 1.25</strong>" in text
    assert f"<code>{'ab' * 32}</code>" in text


def test_an_altered_record_gives_a_page_that_says_so_and_nothing_else(site: RecordingSite) -> None:
    path = site.folder / RECORD_FILE
    path.write_bytes(altered(path.read_bytes(), 2000))
    text = page(site.folder, code=1)
    assert "<h1>A record that was altered</h1>" in text
    assert "line 3 was altered" in text
    assert "Who saw what" not in text


def test_the_page_is_written_into_the_folder_by_default(site: RecordingSite, capsys: Any) -> None:
    assert main(["receipts", "report", str(site.folder)]) == 0
    assert (site.folder / "receipts.html").exists()
    assert "wrote" in capsys.readouterr().out


def result(**changed: Any) -> dict[str, Any]:
    """One of those that netfleet audit writes."""
    table = {"attack": "algebra", "name": "batch", "view": "one neighbour", "method": "NET-FLEET", "private": False}
    return table | {"victims": 4, "value": 0.1, "interval": None, "words": "3 of 32 images"} | changed


def test_an_audit_is_read_and_shown(site: RecordingSite) -> None:
    odd = result(attack="<membership>", name="advantage", private=True, interval=[-0.01, 0.09], words="0.04")
    (site.folder / "audit.json").write_text(json.dumps({"results": [result(), odd, result(value=None)]}))
    assert read_audit(site.folder) == [
        Attack("algebra, batch: NET-FLEET", "one neighbour", "3 of 32 images", "–"),
        Attack("<membership>, advantage: NET-FLEET, private", "one neighbour", "0.04", "-0.01 to 0.09"),
    ]
    shown = "<td>one neighbour</td><td>0.04</td><td>-0.01 to 0.09</td>"
    assert f'<th scope="row">&lt;membership&gt;, advantage: NET-FLEET, private</th>{shown}' in page(site.folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"results": 3}',
        '{"results": [3]}',
        json.dumps({"results": [{"attack": "a", "view": "b", "value": 1}]}),
        json.dumps({"results": [result(attack=1)]}),
        json.dumps({"results": [result(interval=[1, 2, 3])]}),
    ],
)
def test_an_audit_that_cannot_be_read_is_said(site: RecordingSite, text: str) -> None:
    (site.folder / "audit.json").write_text(text)
    with pytest.raises(ConfigError, match="expected what netfleet audit writes"):
        read_audit(site.folder)
    assert "expected what netfleet audit writes" in page(site.folder)


@pytest.mark.parametrize(
    ("content", "method", "words"),
    [
        (
            "float32[10330] in 41320 float32[10330] in 41320",
            NetFleet,
            "the model x (10,330 numbers); the tracked gradient y (10,330 numbers)",
        ),
        ("float32[7] in 28 float32[7] in 28", KGT, "the model x (7 numbers); the correction c (7 numbers)"),
        (
            "float32[70] in 28 float32[70] in 28 float32[4] in 16",
            NetFleet,
            "the model x (70 numbers, compressed to 28 bytes); "
            "the tracked gradient y (70 numbers, compressed to 28 bytes); statistics of BatchNorm layers (4 numbers)",
        ),
        ("float64[7] in 56", None, "a vector of the method (7 numbers)"),
        ("model float32[7]", None, "the model: 7 numbers"),
        ("facts", None, "names, shapes and digests of the parameters of the training loop"),
        ("something new", None, "something new"),
    ],
)
def test_contents_are_described_in_words(content: str, method: Any, words: str) -> None:
    assert describe(content, method) == words


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ('[[algorithms]]\nkind = "net-fleet"\n', NetFleet),
        ('[[algorithms]]\nkind = "no_such_module:method"\n', None),  # it is not imported
        ('[[algorithms]]\nkind = "net-fleet"\n[algorithms.outer]\nkind = "nesterov"\n', None),
        ("rounds = 3\n", None),
        ("[", None),
        ("algorithms = 3\n", None),
    ],
)
def test_the_method_is_read_without_running_code(tmp_path: Path, text: str, method: Any) -> None:
    (tmp_path / "experiment.toml").write_text(text)
    assert read_method(tmp_path) is method
    (tmp_path / "experiment.toml").unlink()
    assert read_method(tmp_path) is None
