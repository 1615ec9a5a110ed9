"""The ledger of a run: durable and checked records of how each task ended."""
