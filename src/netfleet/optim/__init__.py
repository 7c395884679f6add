"""For a training loop of your own: each method as a `torch.optim.Optimizer`, one worker per process.

    dist.init_process_group("gloo")  # torchrun sets all it needs
    optimizer = netfleet.optim.NetFleet(model.parameters(), lr=0.05, K=10, topology="ring")
    for x, y in loader:
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()  # one local step; after K of them an exchange
        optimizer.zero_grad()

`step(closure)` is a whole round: K mini-batches and one exchange. A closure that takes an argument is given the name of
the mini-batch, `(t, k, …)`, which methods that use one twice (DFedSAM) need.
"""

from netfleet.optim.batches import Batches
from netfleet.optim.join import JoinedSite, join
from netfleet.optim.methods import (
    D2,
    DMSGD,
    DSGD,
    DSGT,
    GTSGD,
    KGT,
    LDSGD,
    LED,
    LUGT,
    PDSGDM,
    SCAFFOLD,
    VRLSGD,
    DFedAvgM,
    DFedSAM,
    FedAvg,
    GeneralizedFedAvg,
    MomentumTracking,
    NetFleet,
    ParallelSGD,
    PeriodicalGT,
    ProxSkip,
    QGDSGDm,
    Scaffnew,
)
from netfleet.optim.optimizer import Decentralized

__all__ = [
    "D2",
    "DMSGD",
    "DSGD",
    "DSGT",
    "GTSGD",
    "KGT",
    "LDSGD",
    "LED",
    "LUGT",
    "PDSGDM",
    "SCAFFOLD",
    "VRLSGD",
    "Batches",
    "DFedAvgM",
    "DFedSAM",
    "Decentralized",
    "FedAvg",
    "GeneralizedFedAvg",
    "JoinedSite",
    "MomentumTracking",
    "NetFleet",
    "ParallelSGD",
    "PeriodicalGT",
    "ProxSkip",
    "QGDSGDm",
    "Scaffnew",
    "join",
]
