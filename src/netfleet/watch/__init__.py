"""The page of a running simulation, cluster job or set of sites, which `netfleet watch` serves; it only reads."""
