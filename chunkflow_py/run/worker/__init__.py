"""One worker: it receives tasks, computes them in processes, and records how they end."""
