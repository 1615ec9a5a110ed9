"""A run on a web page: its tasks as a map, its workers, errors, speed and cost.

```
ledger -- states (of headers, loose records) --+
       -- history (of whole pages, bit by bit) +--> watch --> server --> page/ (HTML, JS, CSS)
queue  -- leases, where it can tell them ------+
```

Nothing is read while nobody looks: the page asks, and pauses while it is hidden.
"""
