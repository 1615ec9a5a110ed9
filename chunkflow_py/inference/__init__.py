"""How a network covers a chunk."""
