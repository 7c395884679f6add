"""Gradients in C++ for models that are chains of convolutions and linear layers, and for residual networks.

`layers.py` recognises a chain, `blocks.py` a residual network. `build.py` compiles `chain.cpp` and `residual.cpp` once
per machine; `chain.py` and `residual.py` run them. `heads.py` says which losses they have code for.
"""
