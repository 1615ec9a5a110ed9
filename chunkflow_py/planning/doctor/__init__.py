"""`chunkflow doctor`: check before a run that this machine, the stores and the queues are usable.

```
examine           runs the checks in order
finding           result of a check: ok, note or problem, with a remedy and without secrets
package_checks    versions of Python and of packages, purpose of each missing extra
machine_checks    memory, disk, limits, CPU, threads, allocator, GPUs, a timed convolution
store_checks      whether a URL can be read, written, and written conditionally
queue_checks      whether a queue exists, and has the settings that workers need
clock_checks      offset of this machine's clock from a server's clock
access_policy     minimum permissions that a run needs
```

A check only reads, unless the caller allows writing. If writing is allowed, the check writes test
objects under unused names and removes them afterwards.
"""
