"""A site's account never counts too little, and never lets noise be drawn twice."""

import json
from pathlib import Path

import pytest

from netfleet.errors import ConfigError
from netfleet.privacy.account import ACCOUNT_FILE, AHEAD, SiteAccount
from netfleet.privacy.mechanism import Rate

QUERIES = tuple(1 + 5 * t for t in range(101))


def test_a_resumed_site_draws_the_same(tmp_path: Path) -> None:
    first = SiteAccount(tmp_path, QUERIES, resumes=False)
    before = [first.secret(t).derive("noise", t) for t in range(20)]
    again = SiteAccount(tmp_path, QUERIES, resumes=True)
    assert [again.secret(t).derive("noise", t) for t in range(20)] == before
    assert (tmp_path / ACCOUNT_FILE).stat().st_mode & 0o077 == 0


def test_a_new_training_draws_anew_and_counts_what_came_before(tmp_path: Path) -> None:
    first = SiteAccount(tmp_path, QUERIES, resumes=False)
    drawn = first.secret(7).derive("noise", 7)
    second = SiteAccount(tmp_path, QUERIES, resumes=False)
    assert second.secret(7).derive("noise", 7) != drawn
    assert second.counted(0) - QUERIES[0] >= QUERIES[8]  # rounds 0 to 7 were computed, or may have been
    assert second.counted(0) - QUERIES[0] <= QUERIES[7 + AHEAD]


def test_a_start_that_computes_nothing_costs_nothing(tmp_path: Path) -> None:
    """A site that cannot start, and is restarted every minute, does not lose its budget by that."""
    for _ in range(5):
        assert SiteAccount(tmp_path, QUERIES, resumes=False).counted(0) == QUERIES[0]
    account = SiteAccount(tmp_path, QUERIES, resumes=False)
    account.secret(0)
    assert SiteAccount(tmp_path, QUERIES, resumes=False).counted(0) > QUERIES[0]


def test_changed_rows_get_other_noise_and_the_count_goes_on(tmp_path: Path) -> None:
    """With the same noise, two messages of one round would differ by the gradients of the changed rows alone."""
    first = SiteAccount(tmp_path, QUERIES, resumes=False, rows="a")
    drawn, counted = first.secret(7).derive("noise", 7), first.counted(8)
    assert SiteAccount(tmp_path, QUERIES, resumes=True, rows="a").secret(7).derive("noise", 7) == drawn
    for rows in ("b", "a"):  # also when the old rows are back
        changed = SiteAccount(tmp_path, QUERIES, resumes=True, rows=rows)
        assert changed.secret(7).derive("noise", 7) != drawn
        assert changed.counted(8) == counted


def test_an_old_copy_of_the_account_never_draws_what_was_drawn(tmp_path: Path) -> None:
    SiteAccount(tmp_path, QUERIES, resumes=False).secret(0)
    copy = (tmp_path / ACCOUNT_FILE).read_text()
    second = SiteAccount(tmp_path, QUERIES, resumes=False).secret(0)
    (tmp_path / ACCOUNT_FILE).write_text(copy)
    assert SiteAccount(tmp_path, QUERIES, resumes=False).secret(0).derive("noise", 0) != second.derive("noise", 0)


def test_all_gradients_are_counted_with_the_least_noise_and_the_highest_rate(tmp_path: Path) -> None:
    """The number of rows, and with it noise and rate, may change between starts."""
    assert SiteAccount(tmp_path, QUERIES, resumes=False).charged(Rate(1.0, 0.2, 100)) == Rate(1.0, 0.2, 100)
    assert SiteAccount(tmp_path, QUERIES, resumes=True).charged(Rate(0.8, 0.1, 200)) == Rate(0.8, 0.2, 200)
    assert SiteAccount(tmp_path, QUERIES, resumes=False).charged(Rate(1.5, 0.4, 50)) == Rate(0.8, 0.4, 50)


def test_a_return_counts_its_start_and_its_own_rounds(tmp_path: Path) -> None:
    SiteAccount(tmp_path, QUERIES, resumes=False).secret(0)
    back = SiteAccount(tmp_path, QUERIES, resumes=False)
    earlier = back.counted(0) - QUERIES[0]
    back.secret(0)  # the gradient that it starts with
    back.begin(50, was_there=True)
    assert back.counted(50) == earlier + QUERIES[0]
    assert back.counted(60) == earlier + QUERIES[0] + QUERIES[60] - QUERIES[50]


def test_a_site_that_lost_its_account_counts_all_rounds_before(tmp_path: Path) -> None:
    back = SiteAccount(tmp_path, QUERIES, resumes=False)
    back.begin(50, was_there=True)
    assert back.counted(50) == QUERIES[50] + QUERIES[0]
    (tmp_path / "new").mkdir()
    newcomer = SiteAccount(tmp_path / "new", QUERIES, resumes=False)
    newcomer.begin(50, was_there=False)
    assert newcomer.counted(50) == QUERIES[0]


def test_it_is_on_disk_before_the_draw(tmp_path: Path) -> None:
    account = SiteAccount(tmp_path, QUERIES, resumes=False)
    for t in range(100):
        account.secret(t)
        assert json.loads((tmp_path / ACCOUNT_FILE).read_text())["until"] > t


def test_a_lost_or_damaged_account(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is missing, so this site could draw noise twice"):
        SiteAccount(tmp_path, QUERIES, resumes=True)
    SiteAccount(tmp_path, QUERIES, resumes=False)
    for text in ("{", "{}", '{"key": "00", "until": 3}', '{"key": "%s", "until": 300}' % ("00" * 32)):
        (tmp_path / ACCOUNT_FILE).write_text(text)
        with pytest.raises(ConfigError, match="is damaged"):
            SiteAccount(tmp_path, QUERIES, resumes=True)


def test_the_secret_is_not_shown(tmp_path: Path) -> None:
    account = SiteAccount(tmp_path, QUERIES, resumes=False)
    key = json.loads((tmp_path / ACCOUNT_FILE).read_text())["key"]
    assert key not in repr(account.secret(0)) + repr(vars(account))
