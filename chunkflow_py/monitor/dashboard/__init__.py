"""A run on a web page: its tasks as a map, its workers, errors, speed and cost.

```
ledger -- task_states (of headers and the journal) ------+
       -- task_history (of whole segments, bit by bit) --+--> run_watch --> server, page
queue  -- leases, where it can list them ----------------+
```

Nothing is read while nobody watches: the page requests updates, and pauses while it is hidden.
"""
