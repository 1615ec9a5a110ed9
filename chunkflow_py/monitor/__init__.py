"""Monitor a run and report on it: status, report, dashboard and metrics."""
