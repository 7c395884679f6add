"""How many bytes a site sends, writes and holds, from the rounds of its method and the number of its neighbours."""

from typing import NamedTuple

from netfleet.sites.costs.rounds import Rounds

#: Bytes that a site adds to its record and history in a round, and for each neighbour besides (docs/sites.md).
_RECORD, _RECORD_OF_LINK = 700, 1_200
#: Bytes of a checkpoint besides its vectors: their names, checksums, the manifest.
_NAMES = 1_500


class Sizes(NamedTuple):
    """Bytes."""

    message: int  # to each neighbour, in the round that has most
    checkpoint: int
    record: int  # what the record grows by in a round
    disk: int  # that the training will need
    memory: int  # at least, beside data, model and activations


def sizes_of(made: Rounds, neighbours: int, rounds: int, keep: int) -> Sizes:
    """What a site needs for this many rounds; `keep` checkpoints stay, while a further one is written."""
    held, message = made.held, max(sum(each.bytes) for each in (made.first, *made.cycle))
    ledgers, record = neighbours * held.ledger, _RECORD + neighbours * _RECORD_OF_LINK
    checkpoint = held.state + held.buffers + message + ledgers + _NAMES
    models = 2 * (held.parameters + held.buffers)  # the last and the best
    disk = (keep + 1) * checkpoint + models + rounds * record
    # the state before and after a round, a gradient, the messages of two rounds, and the vectors of an exchange
    vectors = 2 * (held.state + held.buffers) + held.parameters + ledgers
    return Sizes(message, checkpoint, record, disk, vectors + 2 * message + (neighbours + 1) * held.exchange)
