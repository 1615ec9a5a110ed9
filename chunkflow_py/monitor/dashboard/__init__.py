"""A web page that shows a run: a map of its tasks, its workers, errors, speed and cost.

- `task_states` reads the state of each task from the ledger: from the journal (new records), and
  from the headers of segments (older records of up to 2048 tasks each).
- `task_history` reads whole segments of the ledger, a few in each update, for speed and errors.
- `run_watch` adds the leases of the queue to these results, if the queue can list its leases.
- `dashboard_server` sends the results to the page.

The server reads files of the run only after the page has requested an update. A hidden page
requests no updates.
"""
