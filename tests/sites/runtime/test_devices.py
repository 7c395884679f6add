"""Sites whose models are on an accelerator: what crosses to the host, on a stand-in for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from netfleet import ConfigError
from netfleet.compute.host_memory import HostMemory, deliver
from netfleet.problems.synthetic import Quadratics
from netfleet.runs.history import History
from netfleet.runs.progress import Quiet
from netfleet.sites.network.outbox import Outbox
from netfleet.sites.operations.logs import Log
from netfleet.sites.planning.certificates import load_identity
from netfleet.sites.planning.folders import load_site
from netfleet.sites.runtime import join_leave
from netfleet.sites.runtime.runner import SiteRunner
from support.fake_device import DEVICE, FakeDevice, OnDevice
from support.site_loops import FACTS, LOOPS, own_loop, train_loops
from support.site_processes import plan_sites
from support.site_settings import QUADRATICS, quadratics


def elsewhere(i: int) -> Quadratics:
    """The quadratic of worker i on the device."""
    local = quadratics(3).at([i])
    for name, values in list(vars(local).items()):
        if isinstance(values, Tensor):
            setattr(local, name, values.to(DEVICE))
    local.device = DEVICE
    return local


def test_a_row_crosses_once_in_each_direction() -> None:
    memory, bytes_ = HostMemory(), torch.arange(8, dtype=torch.uint8)
    with FakeDevice() as device:
        row = bytes_.to(DEVICE)
        before = device.crossed
        sent, place = memory.copy(row), memory.landing(row)
        assert type(sent) is Tensor
        assert type(place) is Tensor
        place.copy_(sent.flip(0))
        deliver(place, row)
        assert device.crossed - before == 2 * 8
        assert torch.equal(row.cpu(), bytes_.flip(0))


def test_rows_on_the_cpu_are_not_copied_again() -> None:
    row = torch.arange(8, dtype=torch.uint8)
    memory = HostMemory()
    assert memory.landing(row) is row
    assert memory.copy(row).data_ptr() != row.data_ptr()


def test_messages_are_in_the_host_memory_after_a_resume_too() -> None:
    with FakeDevice():
        outbox = Outbox()
        outbox.load_network_state({"sent/3/0/words": torch.ones(4, dtype=torch.uint8).to(DEVICE)})
        (kept,) = outbox.network_state(3).values()
        assert type(kept) is Tensor


def test_sites_with_models_elsewhere_end_where_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states stay there: what crosses are messages, checkpoints and the sketches of the status."""
    monkeypatch.setattr(join_leave, "INFORM", 0.1)
    on_cpu, there = (plan_sites(tmp_path / name, LOOPS, 3) for name in ("cpu", "there"))
    ends = train_loops(tmp_path / "cpu", on_cpu, lambda i: own_loop(i, FACTS))
    found = train_loops(tmp_path / "there", there, lambda i: own_loop(i, FACTS, elsewhere(i)), within=FakeDevice)
    for i in range(3):
        history, other = found[i], ends[i]
        assert isinstance(history, History), history
        assert isinstance(other, History), other
        assert history.final is not None
        assert isinstance(history.final.state.x, OnDevice)
        files = [tmp_path / name / "plan" / f"s{i}" / "model.safetensors" for name in ("cpu", "there")]
        assert torch.allclose(*(load_file(path)["w"] for path in files), rtol=0, atol=1e-12)
    again = train_loops(
        tmp_path / "there", there, lambda i: own_loop(i, FACTS, elsewhere(i)), [1], linger=0.1, within=FakeDevice
    )
    assert isinstance(again[1], History), again[1]
    assert again[1].final is not None
    assert isinstance(again[1].final.state.x, OnDevice)


def runner(folder: Path, i: int = 0) -> SiteRunner:
    place = folder / "plan" / f"s{i}"
    site, settings = load_site(place)
    return SiteRunner(place, site, settings, load_identity(place, f"s{i}"), Log(f"s{i}", None))


@pytest.mark.parametrize("device", ["cuda:7", "meta", "nonsense"])
def test_a_device_that_is_not_there_is_said(tmp_path: Path, device: str) -> None:
    table: dict[str, Any] = {**QUADRATICS, "engine": {"device": device}}
    plan_sites(tmp_path, table, 4)
    with pytest.raises(ConfigError, match=f"device '{device}' cannot be used here"):
        runner(tmp_path).run(Quiet())


def test_a_site_can_choose_another_device_than_the_plan(tmp_path: Path) -> None:
    plan_sites(tmp_path, {**QUADRATICS, "engine": {"device": "cuda:7"}}, 4)
    path = tmp_path / "plan" / "s0" / "site.toml"
    text = path.read_text()
    assert 'device = "cuda:7"' in text
    path.write_text(text.replace('device = "cuda:7"', 'device = "cpu"'))
    assert runner(tmp_path)._problem().device == torch.device("cpu")
