"""Operators in a row: their base, checks before a run, overlapping stages, plugins, options."""
