"""Linear speedup: the averaged metric of Theorem 1 over workers m and rounds S, with η and K by Corollary 2."""
