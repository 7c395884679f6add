"""Codecs, and methods whose messages pass through them."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netfleet import ConfigError, Evaluation, Problem, make_topology, simulate
from netfleet.algorithms import ALGORITHMS
from netfleet.algorithms.build import make_algorithm
from netfleet.algorithms.compression import CODECS, Compressed, Packed, pack
from netfleet.engines import Job, make_engine
from netfleet.problems.synthetic import Quadratics
from netfleet.randomness import bits
from netfleet.runs import checkpoint
from netfleet.runs.build import build_setting, network_for
from netfleet.runs.config import experiment
from netfleet.runs.metrics import tracking_error
from netfleet.runs.run import run_experiment
from support.problems import Memory, matrix_mix, rollout

ALL = [
    "cast",
    {"kind": "cast", "to": "float16"},
    "quantize",
    {"kind": "quantize", "bits": 4},
    {"kind": "quantize", "bits": 4, "block": 3},
    {"kind": "top-k", "share": 0.3},
    {"kind": "random-k", "share": 0.3},
]
every_codec = pytest.mark.parametrize("spec", ALL, ids=str)


def keys(rows: int, address: int = 0) -> Any:
    return bits("test", np.arange(rows), address)


@every_codec
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 7, 300])
def test_what_is_sent_is_what_every_receiver_makes_of_it(spec: Any, dtype: torch.dtype, d: int) -> None:
    v = torch.randn(4, d, dtype=dtype, generator=torch.Generator().manual_seed(d))
    packed = CODECS.build(spec)(v, keys(4))
    assert packed.values.dtype == dtype
    assert packed.wire.dtype == torch.uint8
    assert torch.equal(packed.decode(packed.wire), packed.values)
    message = torch.cat([torch.zeros(1, 5, dtype=torch.uint8), packed.wire[2:3]], dim=1)  # at an odd place
    assert torch.equal(packed.decode(message[:, 5:]), packed.values[2:3])


@every_codec
def test_a_vector_of_zeros_stays_zero(spec: Any) -> None:
    assert not CODECS.build(spec)(torch.zeros(2, 9), keys(2)).values.any()


@given(seed=st.integers(0, 100), d=st.integers(1, 600), size=st.floats(1e-20, 1e20))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("bits_", [8, 4])
def test_rounding_moves_an_entry_by_less_than_a_level(bits_: int, seed: int, d: int, size: float) -> None:
    v = size * torch.randn(3, d, generator=torch.Generator().manual_seed(seed))
    values = CODECS.build({"kind": "quantize", "bits": bits_})(v, keys(3, seed)).values
    assert (values - v).abs().max() <= 1.001 * v.abs().max() / (2 ** (bits_ - 1) - 1)


@given(seed=st.integers(0, 100), d=st.integers(1, 60), size=st.floats(1e-25, 1e25))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize(("to", "digits"), [("bfloat16", 8), ("float16", 11)])
def test_a_cast_keeps_the_digits_of_numbers_of_any_size(to: str, digits: int, seed: int, d: int, size: float) -> None:
    v = size * torch.randn(3, d, generator=torch.Generator().manual_seed(seed))
    values = CODECS.build({"kind": "cast", "to": to})(v, keys(3)).values
    assert ((values - v).abs() <= 2.0**-digits * v.abs() + 2.0**-38 * v.abs().amax(dim=1, keepdim=True)).all()


def test_stochastic_rounding_is_right_on_average() -> None:
    v = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)).expand(4000, -1)
    values = CODECS.build({"kind": "quantize", "bits": 4})(v, keys(4000)).values
    level = v[0].abs().max() / 7
    assert (values.mean(0) - v[0]).abs().max() < 4 * level / 2 / 4000**0.5  # four standard deviations
    assert (values - v).abs().max() > level / 4


def test_top_k_sends_the_largest_and_random_k_any() -> None:
    v = torch.randn(5, 100, generator=torch.Generator().manual_seed(0))
    top = CODECS.build({"kind": "top-k", "share": 0.1})(v, keys(5)).values
    for row, sent in zip(v, top, strict=True):
        assert (sent != 0).sum() == 10
        assert row.abs()[sent != 0].min() > row.abs()[sent == 0].max()
        assert torch.equal(row[sent != 0], sent[sent != 0])
    some = CODECS.build({"kind": "random-k", "share": 0.1})(v, keys(5)).values
    assert ((some != 0).sum(1) == 10).all()
    assert torch.equal(some[some != 0], v[some != 0])
    assert len({tuple(row.nonzero()[:, 0].tolist()) for row in some}) == 5  # every worker draws its own


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ("cast", 2 * 1000),
        ({"kind": "cast", "to": "float16"}, 4 + 2 * 1000),
        ("quantize", 1000 + 4 * 4),
        ({"kind": "quantize", "bits": 4}, 500 + 4 * 4),
        ("top-k", 10 * 8),
        ("random-k", 8 + 10 * 4),
    ],
)
def test_bytes_on_the_wire(spec: Any, size: int) -> None:
    assert CODECS.build(spec)(torch.randn(2, 1000), keys(2)).wire.shape == (2, size)


def test_what_is_not_packed_is_sent_as_it_is() -> None:
    v = torch.randn(2, 5, dtype=torch.float64)
    plain = pack(v)
    assert plain.wire.shape == (2, 40)
    assert torch.equal(plain.decode(plain.wire), v)
    assert pack(plain) is plain


SUM_DIFFERENCES = ["d2", "led", "proxskip"]
EXACT_METHODS = ["net-fleet", "gt-sgd", "k-gt", "periodical-gt", "lu-gt", "momentum-tracking", *SUM_DIFFERENCES]


COARSE = {"kind": "quantize", "bits": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "compress"),
    [*((kind, COARSE) for kind in EXACT_METHODS)]
    + [(kind, c) for kind in ("net-fleet", "led") for c in ("quantize", "cast", {"kind": "cast", "to": "float16"})],
    ids=str,
)
def test_exact_methods_stay_exact(kind: str, compress: Any, graph: Any, quadratics: Any) -> None:
    few = {"momentum-tracking": {"beta": 0.5}, "gt-sgd": {}, "d2": {}}.get(kind, {"K": 2})
    method = make_algorithm({"kind": kind, "eta": 0.08, "compress": compress, **few})
    last = rollout(method, quadratics, packed_mix(graph.W().toarray()), 400)[-1]
    assert (last.x - quadratics.optimum).abs().max() < 1e-9


# One entry of four: with the codec's own gamma, 1, some of the methods swing.
SPARSE = [{"kind": "top-k", "share": 0.25, "gamma": 0.5}, {"kind": "random-k", "share": 0.5}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "compress"), [*((kind, SPARSE[0]) for kind in EXACT_METHODS), ("net-fleet", SPARSE[1])], ids=str
)
def test_some_of_the_entries_are_enough_or_refused(kind: str, compress: Any, graph: Any, quadratics: Any) -> None:
    few = {"momentum-tracking": {"beta": 0.5}, "gt-sgd": {}, "d2": {}}.get(kind, {"K": 5})
    spec = {"kind": kind, "eta": 0.01 if "K" in few else 0.03, "compress": compress, **few}
    if kind in SUM_DIFFERENCES:
        with pytest.raises(ConfigError, match="learns its correction from differences of the models, and can diverge"):
            make_algorithm(spec)
        return
    last = rollout(make_algorithm(spec), quadratics, packed_mix(graph.W().toarray()), 700)[-1]
    assert (last.x - quadratics.optimum).abs().max() < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("kind", SUM_DIFFERENCES)
def test_old_differences_feed_back_into_what_sums_them(kind: str, graph: Any, quadratics: Any) -> None:
    unchecked = type("Unchecked", (ALGORITHMS[kind],), {"sums_differences": False})
    method = unchecked(eta=0.01, **({} if kind == "d2" else {"K": 5}))
    sent = Compressed(method=method, codec=CODECS.build(SPARSE[1]))
    last = rollout(sent, quadratics, packed_mix(graph.W().toarray()), 1000)[-1]
    assert (last.x - quadratics.optimum).abs().max() > 1e3


def test_without_memory_the_error_stays(graph: Any, quadratics: Any) -> None:
    def error(**compress: Any) -> float:
        method = make_algorithm(
            {"kind": "net-fleet", "K": 2, "eta": 0.08, "compress": {"kind": "quantize", **compress}}
        )
        last = rollout(method, quadratics, packed_mix(graph.W().toarray()), 600)[-1]
        assert tracking_error(last) < 1e-9
        return (last.x - quadratics.optimum).abs().max().item()

    assert error(memory=False) > 1e-4
    assert error() < 1e-9


def packed_mix(W: np.ndarray) -> Any:
    plain = matrix_mix(W)

    def mix(*vectors: Any) -> Any:
        return plain(*(v.values if isinstance(v, Packed) else v for v in vectors))

    return mix


GRAPH_METHODS = sorted(name for name in ALGORITHMS if not ALGORITHMS[name].server)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", GRAPH_METHODS)
def test_a_codec_that_changes_nothing_changes_nothing(kind: str, graph: Any, noisy: Problem) -> None:
    mix = packed_mix(graph.W().toarray())
    plain = rollout(make_algorithm({"kind": kind, "eta": 0.05}), noisy, mix, 6)
    sent = rollout(
        make_algorithm({"kind": kind, "eta": 0.05, "compress": {"kind": "top-k", "share": 1.0}}), noisy, mix, 6
    )
    for a, b in zip(plain, sent, strict=True):
        for name in a._fields:
            assert (getattr(a, name) - getattr(b, name)).abs().max() < 1e-11, name


@pytest.mark.parametrize("kind", GRAPH_METHODS)
def test_the_sum_of_what_is_mixed_survives(kind: str, graph: Any, noisy: Problem) -> None:
    method = make_algorithm({"kind": kind, "eta": 0.02, "compress": {"kind": "quantize", "bits": 4}})
    for state in rollout(method, noisy, packed_mix(graph.W().toarray()), 30):
        error = tracking_error(state)
        assert error is None or error < 1e-11


@every_codec
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["net-fleet", "led", "dfedsam"])
def test_the_simulator_equals_one_thread_per_worker(kind: str, spec: Any, noisy: Problem) -> None:
    if kind == "led" and CODECS.build(spec).sparse:
        pytest.skip("refused")
    extra = {"gossip": 2} if kind == "dfedsam" else {}
    method = make_algorithm({"kind": kind, "eta": 0.05, "compress": spec, **extra})
    network = network_for(method, make_topology("ring", workers=6), 0)
    runs = []
    for engine in ("simulator", "threads"):
        memory = Memory()
        make_engine(engine).run(Job(noisy, network, method, 5, memory, None, 1))
        runs.append(memory.snapshots)
    for a, b in zip(*runs, strict=True):
        assert (a.bytes, a.samples) == (b.bytes, b.samples)
        # a value that lies between two levels may be rounded either way by the last bit of a sum
        assert (a.state.x - b.state.x).abs().max() < 1e-9


def run_table(rounds: int, **algorithm: Any) -> Any:
    return experiment(
        {
            "rounds": rounds,
            "checkpoint_every": 2,
            "topology": {"kind": "ring", "workers": 4},
            "problem": {"kind": "quadratics", "sigma": 0.3},
            "algorithms": [{"kind": "net-fleet", "K": 2, "eta": 0.05, **algorithm}],
        }
    )


def test_a_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    table = run_table(6, compress={"kind": "quantize", "bits": 4})
    whole = run_experiment(table, tmp_path)[0]
    run, setting, half = table.runs()[0], build_setting(table, 0), Memory()
    method = make_algorithm(run.config["algorithm"])
    make_engine("simulator").run(Job(setting.problem, setting.topology, method, 4, half, None, 1))
    checkpoint.save(tmp_path / run.folder, half.snapshots[-1], half.host, run.hash)  # as if stopped after 4
    again = run_experiment(table, tmp_path, resume=True)[0]
    assert again.final.t == 6
    for a, b in zip(whole.final.state, again.final.state, strict=True):
        assert torch.equal(a, b)


def test_compression_is_part_of_the_hash_only_where_it_is_used() -> None:
    plain, short = run_table(3).runs()[0], run_table(3, compress="quantize").runs()[0]
    assert "compress" not in plain.config["algorithm"]
    assert short.config["algorithm"]["compress"] == {
        "kind": "quantize",
        "bits": 8,
        "block": 256,
        "gamma": None,
        "memory": True,
    }
    assert plain.hash != short.hash


def test_the_history_counts_the_bytes_truly_sent() -> None:
    problem = Quadratics(8, d=30)
    plain = simulate("ld-sgd", topology="ring", problem=problem, rounds=3)
    short = simulate(
        {"kind": "ld-sgd", "compress": {"kind": "quantize", "block": 16}}, topology="ring", problem=problem, rounds=3
    )
    assert plain.last["bytes"] == 3 * 16 * 30 * 4
    assert short.last["bytes"] == 3 * 16 * (30 + 2 * 4)


@pytest.mark.parametrize(
    ("compress", "words"),
    [
        ("quantise", "unknown compress 'quantise' .did you mean 'quantize'"),
        ({"kind": "quantize", "bits": 3}, "bits must be one of 8, 4, got 3"),
        ({"kind": "quantize", "bits": 8.0}, "bits must be one of 8, 4, got 8.0"),
        ({"kind": "quantize", "block": 0}, "block, the entries that share a scale, must be at least 1, got 0"),
        ({"kind": "top-k", "share": 0.0}, r"share, of the entries that are sent, must lie in \(0, 1\], got 0.0"),
        ({"kind": "random-k", "share": 2}, "share, of the entries that are sent"),
        ({"kind": "quantize", "gamma": 2.0}, r"gamma, the step towards the neighbours, must lie in \(0, 1\]"),
        ({"kind": "quantize", "gamma": "a"}, "compress: gamma must be a number, got 'a'"),
        ({"kind": "quantize", "memory": "no"}, "compress: memory must be true or false, got 'no'"),
        (8, "compress: expected a name or a table with a kind, got 8"),
        ({"kind": "quantize", "gama": 0.5}, "no parameter 'gama'"),
        ({"bits": 8}, "the table has no kind"),
    ],
)
def test_bad_compression_is_refused(compress: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run_table(3, compress=compress)


def test_the_sum_survives_many_rounds_in_float32() -> None:
    def drift(**extra: Any) -> float:
        history = simulate(
            {"kind": "net-fleet", "K": 1, "eta": 0.02, **extra},
            topology="ring",
            workers=8,
            problem={"kind": "quadratics", "sigma": 1.0},
            rounds=600,
            evaluation=Evaluation(every=600),
        )
        return history.last["tracking_error"]

    assert drift(compress="quantize") < 10 * drift()


def test_a_wrapper_is_its_methods_equal_and_has_its_step_size() -> None:
    spec = {"kind": "net-fleet", "eta": 0.3, "compress": "quantize"}
    assert make_algorithm(spec) == make_algorithm(spec)
    assert make_algorithm(spec).step_size(5) == 0.3
    with pytest.raises(ValueError, match="eta"):
        dataclasses.replace(make_algorithm(spec), eta=0.5)


@pytest.mark.parametrize("memory", [True, False])
def test_a_wrapper_survives_pickling(memory: bool) -> None:
    compress = {"kind": "quantize", "bits": 4, "gamma": 0.5, "memory": memory}
    algorithm = make_algorithm({"kind": "net-fleet", "eta": 0.02, "compress": compress})
    copy = pickle.loads(pickle.dumps(algorithm))
    assert copy == algorithm
    assert (copy.step_size(0), copy.State._fields) == (0.02, algorithm.State._fields)  # type: ignore[attr-defined]


def test_differences_need_a_graph_that_stays() -> None:
    method = make_algorithm({"kind": "net-fleet", "compress": "quantize"})
    varying = make_topology("one-peer-exponential", workers=8)
    with pytest.raises(ConfigError, match="these change from round to round; add memory = false"):
        simulate(method, topology=varying, problem="quadratics", rounds=2)
    without = make_algorithm({"kind": "net-fleet", "compress": {"kind": "quantize", "memory": False}})
    assert simulate(without, topology=varying, problem="quadratics", rounds=2).last["round"] == 2


def test_a_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="FedAvg has a server, whose answers would have to be compressed as well"):
        make_algorithm({"kind": "fedavg", "compress": "quantize"})


def test_random_places_do_not_depend_on_who_asks() -> None:
    problem = Quadratics(4, d=6, dtype=torch.float64)
    method = make_algorithm({"kind": "ld-sgd", "eta": 0.1, "compress": {"kind": "random-k", "share": 0.5}})
    stacked = rollout(method, problem, packed_mix(np.eye(4)), 3)[-1]
    alone = rollout(method, problem.at([2]), packed_mix(np.eye(1)), 3)[-1]
    assert torch.equal(stacked.known[2:3], alone.known)
