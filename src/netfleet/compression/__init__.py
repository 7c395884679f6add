"""Fewer bytes: codecs for what `mix` sends, and the wrapper that lets any method use them."""

from netfleet.compression.codecs import CODECS, Codec, Packed, pack
from netfleet.compression.compressed import Compressed, make_algorithm, resolve_algorithm

__all__ = ["CODECS", "Codec", "Compressed", "Packed", "make_algorithm", "pack", "resolve_algorithm"]
