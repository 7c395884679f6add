"""Noise: the numbers of a key are normal, as unpredictable as ChaCha20, and the same everywhere."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from netfleet.compute.threads import ThreadPool
from netfleet.errors import ConfigError
from netfleet.gradients.native import build
from netfleet.gradients.native.compiler import Level, compile_to
from netfleet.privacy import noise
from netfleet.privacy.noise import Doubles, add_gaussian, chacha20, normal_numbers

native = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler here")
LARGEST = math.sqrt(130 * math.log(2))


def keys(count: int, name: str = "test") -> list[bytes]:
    return [hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(count)]


def made(rows: int, d: int, dtype: torch.dtype = torch.float64, pool: ThreadPool | None = None) -> Tensor:
    out = torch.zeros(rows, d, dtype=dtype)
    add_gaussian(out, keys(rows), [1.0] * rows, pool)
    return out


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "library", lambda name, dtype: None)


#: RFC 8439, appendix A.1: the last bytes of a key, the number of a block, and that block.
VECTORS = [
    ("00", 0, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"),
    ("00", 1, "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"),
    ("01", 1, "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"),
    ("ff" + 30 * "00", 2, "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"),
]


@pytest.mark.parametrize(("key", "block", "expected"), VECTORS)
def test_the_stream_is_that_of_the_rfc(key: str, block: int, expected: str) -> None:
    stream = chacha20(bytes.fromhex(key.rjust(64, "0")), 64 * (block + 1))
    assert stream[64 * block :].hex().startswith(expected)


@native
@pytest.mark.parametrize("d", [1, 159, 160, 161, 1000, 40960, 41001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_native_numbers_are_those_of_numpy(d: int, dtype: torch.dtype) -> None:
    start = torch.randn(3, d, dtype=dtype, generator=torch.Generator().manual_seed(0))
    out, scale = start.clone(), [1.0, 0.0, 2.5]
    add_gaussian(out, keys(3), scale)
    for i in range(3):
        expected = start[i] + torch.from_numpy(normal_numbers(keys(3)[i], d, scale[i])).to(dtype)
        assert torch.equal(out[i], expected)
    assert torch.equal(out[1], start[1])


def test_every_machine_makes_these_bits() -> None:
    """Two ends of a link may have different processors and compilers, and their noise must cancel."""
    digest = "54c68a5c55edd6143e60bc8f488d86f97b67ccb1fa2630ad531274776b079e01"
    assert hashlib.sha256(made(1, 1 << 16).numpy().tobytes()).hexdigest() == digest
    assert hashlib.sha256(normal_numbers(keys(1)[0], 1 << 16).tobytes()).hexdigest() == digest


@native
@pytest.mark.parametrize("level", build.levels(), ids=lambda level: level.name)
def test_another_processor_changes_no_bit(level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for another level of this kind of processor: vectors of another length, nothing fused."""
    expected, compiler = made(1, 5000), build.find_compiler()
    assert compiler is not None
    compile_to(tmp_path / "other.so", compiler, "noise", "float64", (level.flags,))
    monkeypatch.setattr(noise, "library", lambda name, dtype: build.load(tmp_path / "other.so", "noise"))
    assert torch.equal(made(1, 5000), expected)


def test_a_negative_scale_is_the_same_noise_with_the_other_sign() -> None:
    out = made(1, 1000)
    add_gaussian(out, keys(1), [-1.0])
    assert not out.any()


@native
def test_the_numbers_are_those_of_a_mathematical_library() -> None:
    """numpy's functions in place of our polynomials: the last digits may differ, also of the smallest numbers."""
    groups = 2000
    words = np.frombuffer(chacha20(keys(1)[0], groups * 16 * 64), "<u4").reshape(groups, 16, 16)[..., :15]
    low, high, turn = words.reshape(groups, 16, 5, 3).transpose(3, 0, 2, 1).astype(np.float64)  # [group, pair, block]
    x, y = made(1, 160 * groups)[0].numpy().reshape(groups, 5, 2, 16).transpose(2, 0, 1, 3)
    radius = np.sqrt(-2 * np.log((high * 2.0**32 + (low + 0.5)) * 2.0**-64))
    assert np.abs(np.hypot(x, y) / radius - 1).max() < 1e-14
    tangent = np.tan(((turn % 2**30) - (2.0**29 - 0.5)) * (2.0**-30 * np.pi / 2))
    mirrored = turn // 2**30 % 2 == 1
    assert np.abs(np.where(mirrored, x / y, y / x) - tangent).max() < 1e-14


def test_without_a_compiler_the_numbers_are_the_same(no_compiler: None) -> None:
    out = made(2, 300)
    assert torch.equal(out[1], torch.from_numpy(normal_numbers(keys(2)[1], 300)))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_and_other_rows_change_no_bit(threads: int) -> None:
    expected = made(3, 70_000)
    assert torch.equal(made(3, 70_000, pool=ThreadPool(threads)), expected)
    for i in range(3):
        alone = torch.zeros(1, 70_000, dtype=torch.float64)
        add_gaussian(alone, keys(3)[i : i + 1], [1.0])
        assert torch.equal(alone[0], expected[i])
    assert torch.equal(made(3, 500), expected[:, :500]), "a row's length does not change its beginning"


def test_rows_that_lie_apart_and_columns_that_do() -> None:
    expected, wide, flipped = made(3, 200), torch.zeros(3, 333, dtype=torch.float64), torch.zeros(200, 3).double()
    for out in (wide[:, 7:207], flipped.T):
        add_gaussian(out, keys(3), [1.0] * 3)
        assert torch.equal(out, expected)
    assert not wide[:, :7].any()
    assert not wide[:, 207:].any()


def test_no_rows_and_no_columns() -> None:
    assert made(0, 5).shape == (0, 5)
    assert made(2, 0).shape == (2, 0)


def test_the_largest_and_the_smallest_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "chacha20", lambda key, count: bytes(count))
    assert np.hypot(*normal_numbers(b"", 160).reshape(5, 2, 16)[0]) == pytest.approx(LARGEST)
    monkeypatch.setattr(noise, "chacha20", lambda key, count: b"\xff" * count)
    assert not normal_numbers(b"", 160).any()


# ----------------------------------------------------------------------------------------------------------- statistics

ROWS, D = 4, 1 << 19
Statistic = Callable[[Doubles], list[float]]
Change = Callable[[Doubles], Doubles]
#: Standard errors that a statistic may be off: with these keys it is fixed, so no test fails by chance.
BOUND = 4.0


def moments(z: Doubles) -> list[float]:
    """Errors of the first four moments and of E[z⁶], in standard errors."""
    exact = {1: 0, 2: 1, 3: 0, 4: 3, 6: 15}
    variance = {1: 1, 2: 2, 3: 15, 4: 96, 6: 10170}  # of zᵏ: E[z²ᵏ] − E[zᵏ]²
    return [math.sqrt(z.size / variance[k]) * (float((z**k).mean()) - exact[k]) for k in exact]


def tails(z: Doubles) -> list[float]:
    """Errors of the numbers beyond some values, on each side, in standard errors."""
    errors = []
    for bound in (1.0, 2.0, 3.0, 4.0, 4.5):
        share = stats.norm.sf(bound)
        errors += [(float((s * z > bound).sum()) - z.size * share) / math.sqrt(z.size * share) for s in (1, -1)]
    return errors


def correlations(z: Doubles) -> list[float]:
    """Between rows, between neighbours at lags that the layout of noise.cpp has, and of squares, in standard errors."""
    errors = [float((a * b).mean()) * math.sqrt(a.size) for i, a in enumerate(z) for b in z[:i]]
    for lag in (1, 2, 8, 15, 16, 17, 32, 160, 40960):
        for power in (1, 2):
            a, b = (part**power - (power == 2) for part in (z[:, lag:], z[:, :-lag]))
            errors.append(float((a * b).mean()) * math.sqrt(a.size) / power)
    return errors


def distance(z: Doubles) -> list[float]:
    """Kolmogorov and Smirnov's statistic in its own units: above 2.5 with a probability of 10⁻⁵."""
    return [float(stats.kstest(z.reshape(-1), stats.norm.cdf).statistic) * math.sqrt(z.size) * BOUND / 2.5]


@pytest.fixture(scope="module")
def numbers() -> Doubles:
    return made(ROWS, D).numpy()


@pytest.mark.parametrize("statistic", [moments, tails, correlations, distance])
def test_the_numbers_are_normal_and_independent(statistic: Statistic, numbers: Doubles) -> None:
    assert np.abs(statistic(numbers)).max() < BOUND


def shared_row(z: Doubles) -> Doubles:
    return np.concatenate([z[:1], 0.01 * z[:1] + z[1:]])


def short_tail(z: Doubles) -> Doubles:
    return np.where(np.abs(z) > 4, 0, z)


def tied_radius(z: Doubles) -> Doubles:
    return z * (1 + 0.01 * np.sign(np.abs(np.roll(z, 16, axis=1)) - 0.67))


@pytest.mark.parametrize(
    ("statistic", "change"),
    [
        (moments, lambda z: 1.005 * z),
        (moments, lambda z: z + 0.005),
        (tails, short_tail),
        (correlations, shared_row),
        (correlations, lambda z: z + 0.01 * np.roll(z, 16, axis=1)),
        (correlations, tied_radius),
        (distance, lambda z: np.round(64 * z) / 64),
    ],
)
def test_the_statistics_find_what_is_not_normal(statistic: Statistic, change: Change, numbers: Doubles) -> None:
    assert np.abs(statistic(change(numbers))).max() > BOUND


# --------------------------------------------------------------------------------------------------------------- errors


def test_keys_that_do_not_fit_are_rejected() -> None:
    out = torch.zeros(2, 5)
    with pytest.raises(ConfigError, match="32 bytes, got one of 31"):
        add_gaussian(out, [bytes(32), bytes(31)], [1.0, 1.0])
    with pytest.raises(ConfigError, match="2 rows of noise need as many keys and scales, got 1 and 2"):
        add_gaussian(out, [bytes(32)], [1.0, 1.0])


def test_with_neither_a_compiler_nor_cryptography_the_user_is_told(
    no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(ConfigError, match=r"netfleet\[privacy\]"):
        made(1, 5)


def test_without_a_compiler_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "shipped", lambda name, dtype: None)
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    build.library.cache_clear()
    try:
        with pytest.warns(build.NativeWarning, match="noise is drawn with numpy"):
            made(1, 5)
    finally:
        build.library.cache_clear()
