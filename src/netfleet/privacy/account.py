"""A site's account of its privacy, on disk: the secret of its draws, and how many gradients it has computed.

`privacy.json` is in the site's own folder, not in its run folder: whoever deletes a run and starts again has not got
the privacy back. Each training from scratch and each return to the network is a new epoch with draws of its own. The
account is written before the gradients that it counts are computed, some rounds ahead, so a crash at any moment never
leaves it too low.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from netfleet.errors import ConfigError
from netfleet.files import write_atomically
from netfleet.privacy.mechanism import Secret

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

    def __repr__(self) -> str:
        return f"Epoch(number={self.number}, first={self.first}, until={self.until}, earlier={self.earlier})"


class SiteAccount:
    """The account of the site in this folder."""

    def __init__(self, folder: Path, queries: Sequence[int], resumes: bool) -> None:
        """`queries` are the gradients after 0, 1, … rounds. `resumes`: a checkpoint is continued, not a new epoch."""
        self._path, self._queries = folder / ACCOUNT_FILE, queries
        known = self._read()
        self._is_new = known is None
        if known is None and resumes:
            raise ConfigError(
                f"{self._path} is missing, so this site could draw noise twice; restore it from a copy, or start again "
                f"with netfleet node {folder} --rejoin"
            )
        if known is not None and resumes:
            self._epoch = known
        elif known is None:
            self._write(Epoch(secrets.token_hex(32)))
        else:
            self._epoch = known
            self._write(Epoch(known.key, known.number + 1, earlier=self.counted(known.until)))

    def begin(self, t: int, was_there: bool) -> None:
        """This epoch's first round is t. A site that was there before but has lost its account counts all rounds."""
        lost = self._is_new and was_there
        self._write(replace(self._epoch, first=t, until=t, earlier=self._queries[t] if lost else self._epoch.earlier))

    def secret(self, t: int) -> Secret:
        if t >= self._epoch.until:
            self._write(replace(self._epoch, until=min(t + AHEAD, len(self._queries) - 1)))
        return Secret(bytes.fromhex(self._epoch.key), self._epoch.number)

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
