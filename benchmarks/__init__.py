"""`netfleet bench`: the simulator, the cluster and the sites measured beside what else one could use.

command.py names the parts. Each part is a module of this folder with `run(setting) -> ResultTable`.
"""
