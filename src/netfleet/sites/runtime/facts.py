"""Sites with loops of their own compare, before round 0, what only these loops know: parameters and initial values.

Each site asks its neighbours once, when it starts from scratch, and then writes its facts beside its checkpoints. A
site that resumes must have the facts that it began with; only its initial values may be others, because it continues
from its checkpoint. So it needs nobody's answer.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from netfleet.errors import CheckpointError, ConfigError
from netfleet.files import write_atomically
from netfleet.sites.network.client import Wanted
from netfleet.sites.network.outbox import Message
from netfleet.sites.network.wire import Kind
from netfleet.sites.operations.logs import printable
from netfleet.sites.runtime.exchange import SiteSession

FACTS_FILE = "facts.json"
#: What is compared, by name.
Facts = Mapping[str, str]
INITIAL = "initial values"
_REMEDIES = {
    "parameters": "build the same model everywhere, and freeze the same parameters",
    "frozen parameters": "load the same file everywhere",
    INITIAL: "call torch.manual_seed with one number everywhere before the model is built, or load one file",
}
_WORDS, _BYTES, _LONGEST = "facts", 4096, 100
#: Seconds for which a site that ends because of a difference waits at most until its neighbour, which has answered, has
#: asked too and so learns of it.
INFORM = 60.0


def shortened(facts: Facts) -> dict[str, str]:
    """The facts with a digest in place of what is long."""
    return {name: text if len(text) <= _LONGEST else _digest(text) for name, text in facts.items()}


def _digest(text: str) -> str:
    return f"{text[:60]}… ({hashlib.sha256(text.encode()).hexdigest()[:16]})"


def facts_message(facts: Facts) -> Message:
    """What a neighbour that asks gets: JSON of a fixed length."""
    text = json.dumps(facts).encode()
    if len(text) > _BYTES:
        raise ConfigError(f"the facts about this site's loop need {len(text)} bytes; at most {_BYTES} are compared")
    return Message(_WORDS, torch.frombuffer(bytearray(text.ljust(_BYTES)), dtype=torch.uint8))


def parse_facts(data: bytes) -> dict[str, str]:
    """Facts from bytes of any origin; raises ValueError and nothing else."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("too many brackets") from None
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise ValueError("the facts must be a table of texts")
    return {printable(name): printable(text) for name, text in found.items()}


def difference(own: Facts, other: Facts, whose: str) -> str | None:
    """One sentence if the other's facts are not the own ones."""
    for what, here in own.items():
        if (there := other.get(what, "nothing")) != here:
            remedy = _REMEDIES.get(what, "make them the same")
            return f"{what} of {whose} and of this site differ: {there} there, {here} here; {remedy}"
    return None


def check_same_facts(folder: Path, facts: Facts) -> dict[str, str]:
    """The facts that a resumed site began with; it must still have them, but for its initial values."""
    path = folder / FACTS_FILE
    try:
        before = parse_facts(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path} ({error}); restore it from a copy, or plan again") from None
    now = {name: text for name, text in facts.items() if name != INITIAL}
    if words := difference(now, before, f"the checkpoint in {folder}"):
        raise ConfigError(words)
    return before


def write_facts(folder: Path, facts: Facts) -> None:
    write_atomically(folder / FACTS_FILE, lambda file: file.write(json.dumps(facts, indent=1).encode()))


def compare_facts(session: SiteSession, facts: Facts, meanwhile: Callable[[], object]) -> None:
    """Ask the neighbours for theirs, and raise at the first difference, as soon as that neighbour has asked too."""
    found = session.loop.wait(_first_difference(session, facts), meanwhile)
    if found is not None:
        raise ConfigError(found)


async def _first_difference(session: SiteSession, facts: Facts) -> str | None:
    there = session.members.neighbourhood.neighbours(0)
    waiting = {asyncio.ensure_future(_difference(session, j, facts)) for j in there}
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if words := next((words for task in done if (words := task.result())), None):
                return words
        return None
    finally:
        for task in waiting:
            task.cancel()


async def _difference(session: SiteSession, j: int, facts: Facts) -> str | None:
    """What differs at neighbour j; a neighbour that is lost before it answers is the first exchange's concern."""
    contact, data = session.members.contacts[j], bytearray(_BYTES)
    wanted = Wanted(
        session.expected(j, -1, words=_WORDS, total=_BYTES), memoryview(data), lambda: bool(parse_facts(bytes(data)))
    )
    answer = await session.client.pull(contact, wanted, kind=Kind.FACTS)
    if answer.kind != Kind.CHUNK:
        return None
    words = difference(facts, parse_facts(bytes(data)), contact.neighbour.name)
    if words is not None:
        await session.members.wait_until_compared(j, INFORM)
    return words
