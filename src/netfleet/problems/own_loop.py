"""The problem of a plan whose sites train with loops of their own: what is trained is known to these loops only."""

from netfleet.errors import ConfigError
from netfleet.problems.base import PROBLEMS, Problem

OWN_LOOP = "own-loop"
#: What a site can do that was dropped, has left or has lost its disk.
NO_WAY_BACK = "a site with a loop of its own cannot join again; plan again with all sites"


@PROBLEMS.register(OWN_LOOP)
def own_loop(workers: int) -> Problem:
    """A training loop of your own at each site, which calls `netfleet.optim.join`; only `netfleet plan` takes it."""
    raise ConfigError(
        f'problem.kind = "{OWN_LOOP}" is trained by a program of your own at each of the {workers} sites; make their '
        f'folders with netfleet plan, and let the program call netfleet.optim.join("FOLDER")'
    )
