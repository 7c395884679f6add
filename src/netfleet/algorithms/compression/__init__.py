"""Fewer bytes for any method over a graph: codecs, and the wrapper that sends differences through them."""

from netfleet.algorithms.compression.codecs import CODECS, Codec, Packed, pack
from netfleet.algorithms.compression.compressed import Compressed

__all__ = ["CODECS", "Codec", "Compressed", "Packed", "pack"]
