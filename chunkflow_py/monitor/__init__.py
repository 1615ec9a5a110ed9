"""During and after a run: status, report, dashboard, metrics."""
