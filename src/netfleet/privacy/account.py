"""A site's account of its privacy, on disk: the secret of its draws, and how many gradients it has computed.

`privacy.json` is in the site's own folder, not in its run folder: whoever deletes a run and starts again has not got
the privacy back. Each training from scratch and each return to the network is a new epoch with a secret of its own. So
is a resumed training whose rows have changed: the same noise over other rows would show the difference between them.
And so is one that was rolled back: the models may be others this time.
The account is written before the gradients that it counts are computed, some rounds ahead, so a crash at any moment
never leaves it too low. All gradients are counted as if they had the least noise and the highest rate so far.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from netfleet.errors import ConfigError
from netfleet.files import write_atomically
from netfleet.privacy.mechanism import Rate, Secret

ACCOUNT_FILE = "privacy.json"
#: Rounds that are counted ahead.
AHEAD = 10


@dataclass(frozen=True)
class Epoch:
    """What is on disk."""

    key: str  # hexadecimal
    number: int = 0
    first: int = 0  # the round in which this epoch began
    until: int = 0  # the round before which its gradients may have been computed
    earlier: int = 0  # gradients of earlier epochs
    rows: str = ""  # digest of the rows that it is for; empty: not known
    noise: float | None = None  # the least of all epochs
    rate: float = 0.0  # the highest
    rollbacks: int = 0  # of the site, when this epoch began (`Rollbacks.key`)

    @property
    def is_used(self) -> bool:
        """Whether gradients may have been computed in this epoch."""
        return self.until > 0

    def next(self, rows: str) -> "Epoch":
        """With another secret, also if this is an old copy of the file: a later epoch may have been there already."""
        return replace(self, key=secrets.token_hex(32), number=self.number + 1, rows=rows)

    def __repr__(self) -> str:
        return f"Epoch(number={self.number}, first={self.first}, until={self.until}, earlier={self.earlier})"


class SiteAccount:
    """The account of the site in this folder."""

    def __init__(
        self,
        folder: Path,
        queries: Sequence[int],
        resumes: bool,
        rows: str = "",
        rollbacks: int = 0,
        rolled_to: int = 0,
    ) -> None:
        """`queries` are the gradients after 0, 1, … rounds. `resumes`: a checkpoint is continued. `rows` names the
        site's rows (`rows_digest`). `rollbacks` names the site's rollbacks, the last of them to round `rolled_to`.
        """
        if rolled_to >= len(queries):
            raise ConfigError(f"{folder} was rolled back to round {rolled_to}, but the training ends before that round")
        self._path, self._queries = folder / ACCOUNT_FILE, queries
        known = self._read()
        self._is_new = known is None
        if known is None and resumes:
            raise ConfigError(
                f"{self._path} is missing, so this site could draw noise twice; restore it from a copy, or start again "
                f"with netfleet node {folder} --rejoin"
            )
        self._epoch = Epoch(secrets.token_hex(32), rows=rows, rollbacks=rollbacks) if known is None else known
        if known is not None and known.is_used and not resumes:
            self._epoch = replace(known.next(rows), first=0, until=0, earlier=self.counted(known.until))
        elif known is not None and resumes and known.rollbacks != rollbacks:
            earlier = self.counted(known.until) - queries[0]  # those before round 0 are not computed again
            self._epoch = replace(known.next(rows), first=rolled_to, until=rolled_to, earlier=earlier)
        elif known is not None and known.rows != rows:
            self._epoch = known.next(rows) if known.rows else replace(known, rows=rows)
        self._epoch = replace(self._epoch, rollbacks=rollbacks)
        if self._epoch != known:
            self._write(self._epoch)

    def begin(self, t: int, was_there: bool) -> None:
        """This epoch's first round is t. A site that was there before but has lost its account counts all rounds."""
        lost = self._is_new and was_there
        self._write(replace(self._epoch, first=t, until=t, earlier=self._queries[t] if lost else self._epoch.earlier))

    def secret(self, t: int) -> Secret:
        if t >= self._epoch.until:
            self._write(replace(self._epoch, until=min(t + AHEAD, len(self._queries) - 1)))
        return Secret(bytes.fromhex(self._epoch.key), self._epoch.number)

    def charged(self, rate: Rate) -> Rate:
        """What gradients are counted with, when they have this rate from now on."""
        known = self._epoch
        least = rate.noise if known.noise is None else min(known.noise, rate.noise)
        worst = rate._replace(noise=least, rate=max(known.rate, rate.rate))
        if (worst.noise, worst.rate) != (known.noise, known.rate):
            self._write(replace(known, noise=worst.noise, rate=worst.rate))
        return worst

    def counted(self, t: int) -> int:
        known = self._epoch
        return known.earlier + self._queries[0] + self._queries[t] - self._queries[known.first]

    def _write(self, epoch: Epoch) -> None:
        text = json.dumps(asdict(epoch), indent=1)
        write_atomically(self._path, lambda file: file.write(text.encode()), 0o600)
        self._epoch = epoch

    def _read(self) -> Epoch | None:
        if not self._path.exists():
            return None
        try:
            known = Epoch(**json.loads(self._path.read_text(encoding="utf-8")))
            if not 0 <= known.first <= known.until < len(self._queries) or len(bytes.fromhex(known.key)) != 32:
                raise ValueError("its numbers do not fit the plan")
            return known
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{self._path} is damaged ({error}); restore it from a copy") from None
