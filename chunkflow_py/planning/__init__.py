"""Estimate the memory, time and cost of a run before it starts.

```
task_amounts      numbers of tasks, bytes, requests, patches   counted from the boxes of the tasks
pilot             memory and time of a few tasks               measured in separate processes
duration_estimate duration of all tasks                        from a pilot, tune, or the user
exchange_estimate whether it pays that tasks share patches     from patch counts and a pilot
prices            cost in dollars                              from a dated price table
task_size_advice  better task size                             from patch counts and memory
planner           plan of a run, with all its problems         run_plan writes it as text and JSON
tune              fastest settings for a network               measured by tune_process
```
"""
