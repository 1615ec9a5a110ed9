"""Pipelines of operators: base classes, checks before a run, stages, plugins and options."""
