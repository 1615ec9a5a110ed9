"""Real servers on loopback for tests and benchmarks, and a proxy that injects faults."""
