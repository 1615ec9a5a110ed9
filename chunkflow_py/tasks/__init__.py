"""Which boxes a volume is divided into, in which order, and lists of them."""
