"""Production runs: spec, plan, ledger, workers, verification and repair."""
