"""A bad network between sites: delays, cut connections and partitions do not change what they compute."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from netfleet.runs.config import read_toml
from support.site_memory import undisturbed_sites
from support.site_processes import SiteProcesses, free_ports, site_processes
from support.site_settings import DIGITS, QUADRATICS, M, check_optimum, gap, optimum, quadratics

pytestmark = pytest.mark.slow

RING: dict[str, Any] = {**DIGITS, "rounds": 40, "topology": {"kind": "ring", "workers": 4}}


class Link:
    """What lies between a site and a neighbour that it dials: passes bytes on, late, or not at all."""

    def __init__(self, port: int, to: int, seed: int) -> None:
        self.port, self.to, self.dice = port, to, random.Random(seed)
        self.delay, self.cuts, self.down = 0.0, 0.0, False
        self.cut = 0  # connections that were cut
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.close()
            return
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self.to)
            self._writers |= {writer, back}
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 14):
                await asyncio.sleep(self.dice.uniform(0, self.delay))
                if self.dice.random() < self.cuts:
                    self.hang_up()
                    break
                writer.write(data[: len(data)])
                await writer.drain()
        writer.close()

    def hang_up(self) -> None:
        """Cut all connections, in the middle of whatever they carry."""
        self.cut += 1
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


class NetworkLinks:
    """The links between all sites of a trial, each direction its own."""

    def __init__(self, sites: SiteProcesses) -> None:
        self.links: dict[tuple[int, int], Link] = {}
        for site in sites.plan.sites:
            path = sites.folder / site.name / "site.toml"
            table = read_toml(path)
            for each in table["neighbours"]:
                (port,) = free_ports(1)
                to = int(each["address"].rpartition(":")[2])
                self.links[site.number, each["number"]] = Link(port, to, seed=17 * site.number + each["number"])
                each["address"] = f"127.0.0.1:{port}"
            path.write_text(tomli_w.dumps(table))
        self._ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.thread.start()
        assert self._ready.wait(10)

    async def _run(self) -> None:
        self.loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        servers = [await link.serve() for link in self.links.values()]
        self._ready.set()
        await self._over.wait()
        for server in servers:
            server.close()
        for link in self.links.values():
            link.hang_up()
        await asyncio.sleep(0.1)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._over.set)
        self.thread.join()

    def part(self, group: set[int]) -> None:
        """From now on nothing passes between the group and the others."""
        for (i, j), link in self.links.items():
            if (i in group) != (j in group):
                link.down = True
                self.loop.call_soon_threadsafe(link.hang_up)

    def heal(self) -> None:
        for link in self.links.values():
            link.down = False


@contextlib.contextmanager
def network_links(sites: SiteProcesses) -> Iterator[NetworkLinks]:
    made = NetworkLinks(sites)
    try:
        yield made
    finally:
        made.end()


def test_delays_cuts_and_a_partition_change_nothing(tmp_path: Path) -> None:
    undisturbed = undisturbed_sites(tmp_path / "undisturbed", RING, 4)
    with site_processes(tmp_path / "disturbed", RING, 4) as sites, network_links(sites) as links:
        for link in links.links.values():
            link.delay, link.cuts = 0.02, 0.005
        sites.start()
        sites.reach(10, *sites.names)
        links.part({0, 1})
        sites.until(lambda: any(status.state == "waiting" for status in sites.ask()))
        stuck = [sites.round(name) for name in sites.names]
        links.heal()
        assert set(sites.wait().values()) == {0}
        assert max(stuck) < RING["rounds"]
        assert sum(link.cut for link in links.links.values()) > 4
        for name in sites.names:
            assert sites.history(name) == undisturbed.history(name)
            found, expected = sites.state(name), undisturbed.state(name)
            assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_partition_longer_than_the_patience_leaves_two_groups(tmp_path: Path) -> None:
    with site_processes(tmp_path, QUADRATICS, M, patience=2.0) as sites, network_links(sites) as links:
        sites.start(hold=dict.fromkeys(sites.names, 20))
        sites.reach(20, *sites.names)
        links.part({0, 1})
        sites.release()
        sites.until(lambda: all(sites.events(name, "lost") for name in sites.names))
        links.heal()
        assert set(sites.wait().values()) == {0}
        for pair in (["s0", "s1"], ["s2", "s3"]):
            assert gap(sites, pair) < 1e-12
            check_optimum(sites, pair, optimum(quadratics(), [int(name[1:]) for name in pair]))
