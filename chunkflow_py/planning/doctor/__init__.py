"""What this machine lacks for a run, found before the run: `chunkflow doctor`.

```
examine     which checks there are, and their order
finding     what a check says: ok, note or problem, and what to do; nothing secret
packages    Python, versions that are allowed, what each missing extra would bring
processor   CPU, threads, allocator, a timed convolution     gpu   the same of GPUs
machine     memory, disk, shared memory, open files
stores      can a URL be read, written, and written on condition      queues   the same of queues
clock       how far this clock is from a server's
policy      the least rights that a run needs
```

A check is read-only unless its caller permits writing; then it writes under names of its own and
removes them again. Checks take what they inspect as arguments, so that tests can plant real faults.
"""
