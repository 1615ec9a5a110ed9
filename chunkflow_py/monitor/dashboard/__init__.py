"""A web page that shows a run: a map of its tasks, its workers, errors, speed and cost.

```
ledger -- task_states (headers and journal) -------------+
       -- task_history (whole segments, gradually) ------+--> run_watch --> server, page
queue  -- leases, if the queue can list them ------------+
```

The run is read only when the page requests an update. While the page is hidden, it requests no
updates.
"""
