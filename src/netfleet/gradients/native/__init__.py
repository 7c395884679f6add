"""Gradients in C++ for models that are chains of convolutions and linear layers.

`layers.py` recognises such a model, `build.py` compiles `chain.cpp` once per machine, `chain.py` runs it.
"""
