"""NET-FLEET in netfleet's simulator, on the model as the user wrote it: two vectors are exchanged, not one."""

import job as jobs
import networkx as nx
import torch

from benchmarks.setting import rounds
from netfleet.data import Dataset
from netfleet.problems import ModuleProblem
from netfleet.topology.topology import make_topology

job = jobs.load()
x, y = torch.from_numpy(job.x), torch.from_numpy(job.y)
data = Dataset("job", x, y, x[:100], y[:100], classes=10)
links = nx.Graph([(i, j) for i in range(job.m) for j in job.neighbours(i)])
topology = make_topology(links, weights=job.W)
problem = ModuleProblem(jobs.torch_model(job), data, list(job.parts), batch=job.batch, threads=job.threads or 0)
run_round = rounds(problem, topology, job.K)
jobs.report(jobs.time_rounds(job, run_round), path=problem.path)
