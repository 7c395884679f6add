"""One file per method; importing this package registers them all."""

from netfleet.algorithms.base import ALGORITHMS, Algorithm, Mix, State
from netfleet.algorithms.d2 import D2
from netfleet.algorithms.d_msgd import DMSGD
from netfleet.algorithms.dfedavgm import DFedAvgM
from netfleet.algorithms.dfedsam import DFedSAM
from netfleet.algorithms.dsgd import DSGD
from netfleet.algorithms.dsgt import DSGT
from netfleet.algorithms.fedavg import FedAvg
from netfleet.algorithms.generalized_fedavg import GeneralizedFedAvg
from netfleet.algorithms.gt_sgd import GTSGD
from netfleet.algorithms.k_gt import KGT
from netfleet.algorithms.ld_sgd import LDSGD
from netfleet.algorithms.led import LED
from netfleet.algorithms.local import with_local
from netfleet.algorithms.lu_gt import LUGT
from netfleet.algorithms.momentum_tracking import MomentumTracking
from netfleet.algorithms.net_fleet import NetFleet
from netfleet.algorithms.outer import with_outer
from netfleet.algorithms.parallel_sgd import ParallelSGD
from netfleet.algorithms.pd_sgdm import PDSGDM
from netfleet.algorithms.periodical_gt import PeriodicalGT
from netfleet.algorithms.proxskip import ProxSkip, Scaffnew
from netfleet.algorithms.qg_dsgdm import QGDSGDm
from netfleet.algorithms.scaffold import SCAFFOLD
from netfleet.algorithms.spider import SPIDER
from netfleet.algorithms.svrg import SVRG
from netfleet.algorithms.vrl_sgd import VRLSGD

__all__ = ["ALGORITHMS", "Algorithm", "Mix", "State", "with_local", "with_outer"]
__all__ += ["D2", "DMSGD", "DSGD", "DSGT", "GTSGD", "KGT", "DFedAvgM", "DFedSAM", "FedAvg", "GeneralizedFedAvg"]
__all__ += ["LDSGD", "LED", "LUGT", "PDSGDM", "MomentumTracking", "NetFleet", "ParallelSGD", "PeriodicalGT"]
__all__ += ["SCAFFOLD", "SPIDER", "SVRG", "VRLSGD", "ProxSkip", "QGDSGDm", "Scaffnew"]


def __dir__() -> list[str]:
    return sorted(__all__)
