"""Estimate memory, time and cost of a run before it starts.

```
task_amounts      tasks, bytes, requests, patches              counted from boxes alone, exactly
pilot             a few tasks, written to a scratch folder      measured in separate processes
duration_estimate seconds of all tasks                         from a pilot, tune, or the user
prices            dollars                                      from a dated table
task_size_advice  the task size with the least work            from patches and memory
planner           the plan of a run, with all problems         run_plan: the plan as text and JSON
tune              the fastest settings for a network           each measured in a tune_process
```
"""
