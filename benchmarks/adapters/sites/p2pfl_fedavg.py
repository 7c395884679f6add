# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "torch==2.13.0", "numpy==1.26.4", "p2pfl==0.4.4", "lightning==2.6.6", "opendp==0.16.0", "pyarrow==17.0.0",
#   "huggingface_hub==0.25.2"
# ]
# ///
"""Federated averaging in p2pfl: one process for each node, gRPC with mutual TLS between them, all nodes in every round.

Settings: p2pfl waits between two messages of its gossip, by default a second between two models; here a hundredth. Its
learner would build a Lightning trainer in every round and evaluate; `Steps` does the K steps of the work only. Ray is
off: a node computes in its own process. Heartbeats are p2pfl's default; a missing model is waited for for 60 s, as in
its examples (the default is 300).
"""

# ruff: noqa: E402
import time
from typing import Any

import numpy as np
import work as works
from p2pfl.settings import Settings

Settings.general.DISABLE_RAY = True
Settings.general.LOG_DIR = str(works.FOLDER / "logs")
Settings.gossip.PERIOD, Settings.gossip.MODELS_PERIOD, Settings.gossip.MODELS_PER_ROUND = 0.01, 0.01, 4
Settings.gossip.EXIT_ON_X_EQUAL_ROUNDS = 1000  # 10 s, as with the default period
Settings.training.AGGREGATION_TIMEOUT = 60

from datasets import Dataset, DatasetDict
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
from p2pfl.learning.frameworks import Framework
from p2pfl.learning.frameworks.learner import Learner
from p2pfl.learning.frameworks.pytorch.lightning_model import LightningModel
from p2pfl.node import Node
from p2pfl.stages.base_node.round_finished_stage import RoundFinishedStage


class Steps(Learner):  # type: ignore[misc]
    def __init__(self, work: works.Work, i: int) -> None:
        super().__init__()
        self.work, self.i = work, i

    def fit(self) -> Any:
        works.local_steps(self.work, self.i, self.get_model().get_model())
        self.get_model().set_contribution([self.addr], self.get_data().get_num_samples())
        return self.get_model()

    def interrupt_fit(self) -> None:
        """The steps are few."""

    def evaluate(self) -> dict[str, float]:
        return {}

    def get_framework(self) -> str:
        return str(Framework.PYTORCH.value)


def node(i: int) -> None:
    """Be a node; the first one waits for the others and starts the training."""
    work = works.load()
    certificates = works.FOLDER / "plan" / f"s{i}"
    for side in ("SERVER", "CLIENT"):
        setattr(Settings.ssl, f"{side}_CRT", str(certificates / "node.pem"))
        setattr(Settings.ssl, f"{side}_KEY", str(certificates / "node.key"))
    Settings.ssl.CA_CRT = str(certificates / "ca.pem")
    rows = Dataset.from_dict({"label": work.y[np.asarray(work.parts[i])].tolist()})
    data = P2PFLDataset(DatasetDict(train=rows, test=rows), batch_size=work.batch, dataset_name="digits")
    address = f"127.0.0.1:{work.ports[i]}"
    peer = Node(LightningModel(works.network(work)), data, addr=address, learner=Steps(work, i))
    _count_rounds(i)
    peer.start()
    again = (works.FOLDER / f"started-{i}").exists()
    (works.FOLDER / f"started-{i}").touch()
    for j in range(work.m) if again else range(i):
        while j != i and not peer.connect(f"127.0.0.1:{work.ports[j]}"):
            time.sleep(0.2)
    if i == work.m - 1 and not again:
        while len(peer.get_neighbors(only_direct=True)) < work.m - 1:
            time.sleep(0.1)
        peer.set_start_learning(rounds=work.rounds, epochs=1, trainset_size=work.m)
    while True:
        time.sleep(60)


def _count_rounds(i: int) -> None:
    """Say so when p2pfl ends a round."""
    whole = RoundFinishedStage.execute

    def execute(state: Any = None, **more: Any) -> Any:
        works.done(i, state.round + 1)
        return whole(state=state, **more)

    RoundFinishedStage.execute = staticmethod(execute)


works.run({"node": node})
