"""The page about a site's record that a data-protection officer asks for: one HTML file that contains everything."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rich.filesize import decimal

import netfleet
from netfleet.algorithms import Algorithm
from netfleet.errors import ConfigError, RecordError
from netfleet.files import write_atomically
from netfleet.privacy.receipts.audit_file import AUDIT_FILE, Attack, read_audit
from netfleet.privacy.receipts.contents import describe, read_method
from netfleet.privacy.receipts.lines import Event, What
from netfleet.privacy.receipts.overview import read_authorities, verify_folder
from netfleet.privacy.receipts.record import RECORD_FILE
from netfleet.privacy.receipts.summary import Summary, Traffic, total
from netfleet.report.page import render

_KINDS: dict[What, str] = {
    "message": "messages of the rounds",
    "model": "models, for a site that joined",
    "facts": "facts about the loop",
    "key": "public keys for noise on links",
}
_EVENTS: dict[Event, str] = {
    "joined": "joined the training",
    "rejoined": "came back and took the neighbours' model",
    "admitted": "was admitted as a neighbour",
    "returned": "came back as a neighbour",
    "left": "left the training",
    "lost": "was given up",
    "evicted": "was evicted",
}
#: Files of a site's folder: what they hold, and how long.
FILES = (
    ("run/checkpoint*", "the state of the training: the model, the gradients that the method tracks, the messages of "
     "the last round, and sums of what came from each neighbour", "replaced in every round; the last one stays"),
    ("kept", "the same of some earlier rounds", "some checkpoints (`keep` in site.toml); older ones are removed"),
    ("run/history.jsonl", "accuracy, losses and counters of each evaluation", "stays"),
    ("run/events.*", "the same for TensorBoard", "stays; only with --track"),
    ("run/track.txt", "a random name for this training in trackers", "stays; only with --track"),
    ("run/scores.csv", "scores of the last model on the site's test rows", "stays"),
    ("run/facts.json", "names, shapes and digests of parameters", "stays"),
    ("run/config.json", "the settings of the training", "stays"),
    ("run/rows.json", "the number of the training rows and a digest of the data", "stays"),
    ("run/steps.jsonl", "how many local steps were made in each round", "grows"),
    ("run/modules.json", "where modules that the experiment names were found", "stays"),
    ("run/noise.json", "the secrets from which the noise of links is drawn", "stays; nobody else may have it"),
    ("privacy.json", "the secret from which rows and noise are drawn, and how many gradients were computed",
     "stays: it counts for later trainings too; nobody else may have it"),
    ("model.safetensors", "the trained model", "stays"),
    ("model-best.safetensors", "the best model by the site's validation rows", "stays"),
    ("model-alone*.safetensors", "models that the site trained without neighbours", "stays"),
    ("alone", "history and checkpoint of that training", "stays"),
    ("models", "models that others gave to the site", "stays"),
    ("evaluation.*", "scores of models on the site's test rows", "stays"),
    (RECORD_FILE, "this record: names, times, sizes, digests and signatures; no data, no model, no gradient",
     "grows; keep it as long as you must account for the training"),
    ("receipts.head", "how long the record is", "stays, with the record"),
    (AUDIT_FILE, "attacks that were tried and their results", "stays"),
    ("node.log", "names and addresses of those who connected, events", "grows (a trial); else see your system's log"),
    ("policy.toml", "what the site allows", "stays"),
    ("approved.json", "digests of the code that the site has approved", "stays"),
    ("pins", "certificates of the neighbours", "stays"),
    ("revoked*.pem", "certificates that the operator has revoked", "stays"),
    ("ca.pem", "the authority's certificate", "stays"),
    ("node.pem", "the site's certificate", "until it is renewed"),
    ("experiment.toml", "the experiment as it was planned", "stays"),
    ("site.toml", "names and addresses of the neighbours", "stays"),
    ("neighbours.d", "names and addresses of neighbours that joined later", "stays"),
    ("rollbacks.json", "how often the site was taken back to an earlier round", "stays"),
    ("alarm.json", "which numbers were unusual, since which round", "until somebody has looked (netfleet release)"),
    ("health.json", "the last sign of life, with the round", "while the site runs"),
    ("links.json", "rounds in which links began and ended", "stays"),
    ("node.key", "the site's private key", "until the certificate is renewed; nobody else may have it"),
)  # fmt: skip


class Seen(NamedTuple):
    """A row about something that somebody could see."""

    who: str
    what: str
    details: str
    rounds: str
    first: str
    last: str
    number: str
    confirmed: str
    repeated: str
    size: str


def write_report(folder: Path, authorities: Sequence[Path], path: Path) -> bool:
    """Write the page; whether no alteration of the record was found. If one was, the page says that and no more."""
    now = datetime.now(UTC)
    try:
        verified, problem = verify_folder(folder, read_authorities(folder, authorities)), ""
    except RecordError as error:
        verified, problem = None, str(error)
    values = {} if verified is None else _values(folder, verified.summary)
    page = render(
        "receipts.html",
        problem=problem,
        notices=() if verified is None else verified.notices,
        written=_time(now),
        version=netfleet.__version__,
        folder=folder,
        **values,
    )
    write_atomically(path, lambda file: file.write(page.encode()))
    return verified is not None


def _values(folder: Path, summary: Summary) -> dict[str, object]:
    method = read_method(folder)
    sent = [row for name in summary.neighbours for row in _seen(name, summary.neighbours[name].sent, method)]
    received = [row for name in summary.neighbours for row in _seen(name, summary.neighbours[name].received, method)]
    attacks, unread = _audit(folder)
    return {
        "site": summary.site,
        "run": summary.run,
        "facts": _facts(summary, method),
        "hash": summary.hash,
        "lines": summary.lines,
        "sent": [*sent, *_answers(summary)],
        "received": received,
        "totals": _totals(summary),
        "metrics": [(address, _time(time)) for time, address in summary.metrics],
        "epsilon": summary.epsilon,
        "policies": summary.policies,
        "attacks": attacks,
        "unread": unread,
        "changes": [(_time(t), each.site, _EVENTS[each.event], each.round, each.why) for t, each in summary.changes],
        "repairs": summary.repairs,
        "files": [(name, what, how_long, _present(folder, name)) for name, what, how_long in FILES],
        "neighbours": sorted(summary.neighbours),
        "unconfirmed": total(_all_sent(summary)).unconfirmed,
    }


def _facts(summary: Summary, method: type[Algorithm] | None) -> list[tuple[str, str]]:
    whole = total(_all_sent(summary))
    rounds = [each.rounds for each in _all_sent(summary) if each.rounds is not None]
    return [
        ("site", summary.site),
        *([] if method is None else [("method", method.title)]),
        ("neighbours", ", ".join(sorted(summary.neighbours)) or "none"),
        ("first line (UTC)", _time(summary.first)),
        ("last line (UTC)", _time(summary.last)),
        ("rounds with messages", f"{min(r[0] for r in rounds)} to {max(r[1] for r in rounds)}" if rounds else "none"),
        ("sent", f"{whole.count:,} messages and models, {decimal(whole.bytes)}"),
        ("confirmed by their receivers", f"{whole.confirmed:,} of {whole.count:,}"),
        ("privacy spent", "not counted" if summary.epsilon is None else f"ε = {summary.epsilon:.4g}"),
        ("starts of the site", str(len(summary.starts))),
    ]


def _all_sent(summary: Summary) -> list[Traffic]:
    return [traffic for neighbour in summary.neighbours.values() for traffic in neighbour.sent.values()]


def _seen(name: str, things: Mapping[What, Traffic], method: type[Algorithm] | None) -> Iterable[Seen]:
    for what, traffic in things.items():
        details = " or ".join(sorted(describe(content, method) for content in traffic.contents))
        low, high = traffic.rounds or (0, 0)
        rounds = "before round 0" if high < 0 else f"{max(low, 0)} to {high}" if low != high else str(high)
        yield Seen(
            name,
            _KINDS[what],
            details,
            rounds,
            _time(traffic.first),
            _time(traffic.last),
            f"{traffic.count:,}",
            f"{traffic.confirmed:,}",
            f"{traffic.again:,}",
            decimal(traffic.bytes),
        )


def _answers(summary: Summary) -> Iterable[Seen]:
    for name, answers in summary.status.items():
        values = ", ".join(sorted(answers.values))
        details = f"round, links, bytes{', ' + values if values else ''}"
        first, last = _time(answers.first), _time(answers.last)
        yield Seen(name, "status of the site", details, "–", first, last, f"at most {answers.count:,}", *"–––")


def _totals(summary: Summary) -> list[tuple[str, str, str, str]]:
    """What was sent in sum, by kind: how often, how often confirmed, bytes."""
    rows = []
    for what, words in _KINDS.items():
        parts = [traffic for each in summary.neighbours.values() for kind, traffic in each.sent.items() if kind == what]
        if parts:
            whole = total(parts)
            rows.append((words, f"{whole.count:,}", f"{whole.confirmed:,}", decimal(whole.bytes)))
    answered = sum(answers.count for answers in summary.status.values())
    return [*rows, *([("answers about the status", f"at most {answered:,}", "–", "–")] if answered else [])]


def _audit(folder: Path) -> tuple[list[Attack] | None, str]:
    """The attacks that were tried, if any, or why the file cannot be read."""
    try:
        return read_audit(folder), ""
    except ConfigError as error:
        return None, str(error)


def _present(folder: Path, name: str) -> str:
    found = [path for path in folder.glob(name) if path.is_file()]
    return decimal(sum(path.stat().st_size for path in found)) if found else "yes" if (folder / name).is_dir() else "no"


def _time(time: datetime | None) -> str:
    return "–" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"
