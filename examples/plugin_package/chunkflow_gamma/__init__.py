"""An operator of chunkflow in a package of its own."""
