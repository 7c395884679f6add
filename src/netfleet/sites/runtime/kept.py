"""The checkpoints that a site keeps beside its last one, so that it can go back to an earlier round: `kept/ROUND/`.

The checkpoint of round r is kept until 2 · 2ᵏ rounds later, where 2ᵏ is the largest power of two that divides r, but at
most 2^(keep − 2). These are `keep` checkpoints, which lie denser the later they are, and reach at least 2^(keep − 2)
rounds back. They depend on the round only, so sites that are some rounds apart have most of them in common.

When a site of the training has an alarm, all sites hold fast what they keep then (`HELD_FILE`), until somebody has
looked. So there is a round from before the alarm to which all of them can go back, however late somebody looks.

Each is a folder with hard links to the files of the checkpoint, so keeping it copies nothing.
"""

import os
import shutil
from pathlib import Path

from netfleet.errors import CheckpointError
from netfleet.files import make_folder, sync_folder, write_atomically, writing
from netfleet.runs import checkpoint
from netfleet.sites.planning.folders import RUN_FOLDER

KEPT_FOLDER = "kept"
#: In that folder: the round whose kept checkpoints are held fast.
HELD_FILE = "held"


def kept_rounds(t: int, keep: int) -> set[int]:
    """The rounds whose checkpoints are kept when t rounds are done.

    >>> sorted(kept_rounds(100, 6))
    [80, 88, 96, 98, 99, 100]
    """
    if keep < 2:
        return {t}
    rounds, step = {t}, 1
    for _ in range(keep - 1):
        rounds |= {r for r in (t // step * step, t // step * step - step) if r >= 0 and _lasts(r, t, keep)}
        step *= 2
    return rounds


def _lasts(r: int, t: int, keep: int) -> bool:
    most = 1 << (keep - 2)
    return t - r < 2 * (min(r & -r, most) if r else most)


def keep_last(folder: Path, wanted: set[int]) -> None:
    """Keep the last checkpoint of a site's folder too, and remove those that are not wanted any more."""
    run_folder, kept = folder / RUN_FOLDER, folder / KEPT_FOLDER
    t = checkpoint.reached(run_folder)
    new, place = kept / f".{t}.tmp", kept / str(t)
    with writing(kept):
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        for path in checkpoint.files(run_folder):
            _link(path, new / path.name)
        shutil.rmtree(place, ignore_errors=True)
        new.rename(place)
    remove(folder, [r for r in _numbers(folder) if r not in wanted])


def held_round(folder: Path) -> int | None:
    """The round whose kept checkpoints a site holds fast, if it does."""
    try:
        return int((folder / KEPT_FOLDER / HELD_FILE).read_text(encoding="ascii"))
    except FileNotFoundError:
        return None
    except ValueError:
        return 0  # damaged: what is there from the beginning stays


def hold_fast(folder: Path, t: int) -> None:
    make_folder(folder / KEPT_FOLDER)
    write_atomically(folder / KEPT_FOLDER / HELD_FILE, lambda file: file.write(str(t).encode()))


def let_go(folder: Path) -> None:
    (folder / KEPT_FOLDER / HELD_FILE).unlink(missing_ok=True)


def _link(path: Path, to: Path) -> None:
    try:
        os.link(path, to)
    except OSError:  # a file system without hard links
        with open(path, "rb") as source:
            write_atomically(to, lambda file: shutil.copyfileobj(source, file))  # durable, as the file of a link is


def available(folder: Path) -> list[int]:
    """The rounds to which the site in a folder can go back."""
    return [r for r in _numbers(folder) if checkpoint.exists(folder / KEPT_FOLDER / str(r))]


def _numbers(folder: Path) -> list[int]:
    """The rounds that have a folder, also one that a crash has left half removed."""
    folders = (folder / KEPT_FOLDER).glob("[0-9]*")
    return sorted(int(path.name) for path in folders if path.name.isdecimal())


def remove(folder: Path, rounds: list[int]) -> None:
    for r in rounds:
        shutil.rmtree(folder / KEPT_FOLDER / str(r), ignore_errors=True)


def check_kept(folder: Path, to: int) -> None:
    """Raise unless the kept checkpoint of a round is whole."""
    place = folder / KEPT_FOLDER / str(to)
    advice = f"go back to another round: {', '.join(str(r) for r in available(folder) if r != to)}"
    if checkpoint.reached(place) != to:
        raise CheckpointError(f"{place} is not a checkpoint of round {to}; {advice}")
    for path in checkpoint.files(place)[:-1]:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; {advice}")
        checkpoint.verify(path, advice)


def restore(folder: Path, to: int) -> None:
    """Make a kept checkpoint, which was checked, the last one, and remove later ones; a crash leaves the one or the
    other.
    """
    run_folder = folder / RUN_FOLDER
    *states, manifest = checkpoint.files(folder / KEPT_FOLDER / str(to))
    with writing(run_folder):
        run_folder.mkdir(exist_ok=True)
        there = checkpoint.files(run_folder)[:-1] if checkpoint.exists(run_folder) else []
        for path in states:
            temporary = run_folder / f".{path.name}.tmp"
            temporary.unlink(missing_ok=True)
            _link(path, temporary)
            os.replace(temporary, run_folder / path.name)
        sync_folder(run_folder)
        write_atomically(run_folder / manifest.name, lambda file: file.write(manifest.read_bytes()))
        for path in there:
            if path.name not in {each.name for each in states}:
                path.unlink(missing_ok=True)
    remove(folder, [r for r in _numbers(folder) if r > to])
