"""A class for each method: `netfleet.optim.NetFleet(model.parameters(), lr=0.05, K=10)`.

`tests/optim/test_methods.py` checks that their parameters are those of the methods. SVRG and SPIDER pass over all of a
worker's data, which a loop cannot, so they have none.
"""

from collections.abc import Iterable
from typing import Literal, TypedDict, Unpack

import networkx as nx
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from netfleet import algorithms
from netfleet.algorithms.local import LocalSpec
from netfleet.optim.optimizer import Decentralized
from netfleet.registry import Spec
from netfleet.topology.topology import Topology


class Options(TypedDict, total=False):
    """What all of them take, as `Decentralized` does."""

    topology: Topology | nx.Graph | Spec
    local: LocalSpec | None
    outer: Spec | None
    weight_decay: float | None
    buffers: Iterable[Tensor]
    group: dist.ProcessGroup | None
    seed: int


class D2(Decentralized):
    """D² with step size η."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.01, **options: Unpack[Options]) -> None:
        super().__init__(params, algorithms.D2(eta=float(lr)), **options)


class DMSGD(Decentralized):
    """Local SGD with momentum and gossip averaging of models and momenta."""

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, beta: float = 0.9, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, algorithms.DMSGD(eta=float(lr), K=K, beta=beta), **options)


class DFedAvgM(Decentralized):
    """K local heavy-ball steps of size η and momentum β, then gossip averaging of the models."""

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, beta: float = 0.9, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, algorithms.DFedAvgM(eta=float(lr), K=K, beta=beta), **options)


class DFedSAM(Decentralized):
    """K local sharpness-aware steps of size η and radius ρ, then gossip averaging, `gossip` times."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        *,
        K: int = 10,
        rho: float = 0.01,
        gossip: int = 1,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, algorithms.DFedSAM(eta=float(lr), K=K, rho=rho, gossip=gossip), **options)


class DSGD(Decentralized):
    """Decentralized SGD with step size η."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.01, **options: Unpack[Options]) -> None:
        super().__init__(params, algorithms.DSGD(eta=float(lr)), **options)


class DSGT(Decentralized):
    """One step of gradient tracking and K − 1 steps of local SGD per round, step size η."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, **options: Unpack[Options]) -> None:
        super().__init__(params, algorithms.DSGT(eta=float(lr), K=K), **options)


class FedAvg(Decentralized):
    """Federated averaging: K local steps of size η by a share of the workers."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        *,
        K: int = 10,
        participation: float = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, algorithms.FedAvg(eta=float(lr), K=K, participation=participation), **options)


class GeneralizedFedAvg(Decentralized):
    """FedAvg with K local steps of size η and a server step of size η_g."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        *,
        K: int = 10,
        eta_g: float = 1.0,
        participation: float = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            params,
            algorithms.GeneralizedFedAvg(eta=float(lr), K=K, eta_g=eta_g, participation=participation),
            **options,
        )


class GTSGD(Decentralized):
    """Gradient tracking with step size η."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.01, **options: Unpack[Options]) -> None:
        super().__init__(params, algorithms.GTSGD(eta=float(lr)), **options)


class KGT(Decentralized):
    """Gradient tracking with K local steps of size η and an exchange of step size η_s."""

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, eta_s: float = 1.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, algorithms.KGT(eta=float(lr), K=K, eta_s=eta_s), **options)


class LDSGD(Decentralized):
    """Local SGD with gossip averaging: K local steps per round, step size η."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, **options: Unpack[Options]) -> None:
        super().__init__(params, algorithms.LDSGD(eta=float(lr), K=K), **options)


class LED(Decentralized):
    """Local exact diffusion with K local steps of size η; the correction's step β is 1/K unless given."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        *,
        K: int = 10,
        beta: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, algorithms.LED(eta=float(lr), K=K, beta=beta), **options)


class LUGT(Decentralized):
    """Gradient tracking with K − 1 local updates between two exchanges."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, **options: Unpack[Options]) -> None:
        super().__init__(params, algorithms.LUGT(eta=float(lr), K=K), **options)


class MomentumTracking(Decentralized):
    """Decentralized SGD with tracked momentum β."""

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 0.01, *, beta: float = 0.9, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, algorithms.MomentumTracking(eta=float(lr), beta=beta), **options)


class NetFleet(Decentralized):
    """NET-FLEET with K local steps per round and step size η."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, **options: Unpack[Options]) -> None:
        super().__init__(params, algorithms.NetFleet(eta=float(lr), K=K), **options)


class ParallelSGD(Decentralized):
    """SGD with the average of a gradient of every worker that takes part, step size η."""

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 0.01, *, participation: float = 1.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, algorithms.ParallelSGD(eta=float(lr), participation=participation), **options)


class PDSGDM(Decentralized):
    """Local SGD with momentum and gossip averaging of the models."""

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, beta: float = 0.9, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, algorithms.PDSGDM(eta=float(lr), K=K, beta=beta), **options)


class PeriodicalGT(Decentralized):
    """Gradient tracking once per round, K local steps of size η along the tracked correction."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, **options: Unpack[Options]) -> None:
        super().__init__(params, algorithms.PeriodicalGT(eta=float(lr), K=K), **options)


class ProxSkip(Decentralized):
    """Corrected local steps of size η, K of them on average between two exchanges with the neighbours."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, **options: Unpack[Options]) -> None:
        super().__init__(params, algorithms.ProxSkip(eta=float(lr), K=K), **options)


class Scaffnew(Decentralized):
    """Corrected local steps of size η, K of them on average between two exact averages."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, **options: Unpack[Options]) -> None:
        super().__init__(params, algorithms.Scaffnew(eta=float(lr), K=K), **options)


class QGDSGDm(Decentralized):
    """Decentralized SGD with quasi-global momentum β, averaged with factor μ."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        *,
        beta: float = 0.9,
        mu: float = 0.9,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, algorithms.QGDSGDm(eta=float(lr), beta=beta, mu=mu), **options)


class SCAFFOLD(Decentralized):
    """K corrected local steps of size η, a server step of size η_g, control variates by option I or II."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        *,
        K: int = 10,
        eta_g: float = 1.0,
        option: Literal["I", "II"] = "II",
        participation: float = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            params,
            algorithms.SCAFFOLD(eta=float(lr), K=K, eta_g=eta_g, option=option, participation=participation),
            **options,
        )


class VRLSGD(Decentralized):
    """K corrected local steps of size η between two exact averages."""

    def __init__(self, params: ParamsT, lr: float | Tensor = 0.01, *, K: int = 10, **options: Unpack[Options]) -> None:
        super().__init__(params, algorithms.VRLSGD(eta=float(lr), K=K), **options)
