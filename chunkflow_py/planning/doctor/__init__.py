"""`chunkflow doctor`: check before a run whether this machine, stores and queues suit it.

```
examine           the list of checks, and their order
finding           result of a check: ok, note or problem, with a remedy; secrets are removed
package_checks    Python, versions of packages, purpose of each missing extra
machine_checks    memory, disk, limits, CPU, threads, allocator, GPUs, a timed convolution
store_checks      whether a URL can be read, written, and written conditionally
queue_checks      whether a queue exists and keeps tasks as workers need
clock_checks      offset of this clock from a server's
access_policy     the least permissions that a run needs
```

A check only reads, unless the caller allows writing; then it writes under unused names and removes
these objects afterwards. The paths to inspect are arguments, so that tests can create real faults.
"""
