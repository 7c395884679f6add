"""A site's record of what left it: lines in a hash chain, signatures of both ends, verification and report."""
