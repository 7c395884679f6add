"""`netfleet bench`; command.py names the parts, each a module with `run(setting) -> ResultTable`."""
