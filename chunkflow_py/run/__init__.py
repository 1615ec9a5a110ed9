"""One production run: its plan, its spec, its ledger, and the workers that carry it out."""
