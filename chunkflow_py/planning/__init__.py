"""What a run will take, estimated before it starts.

```
task_amounts      tasks, bytes, requests, patches              counted from boxes alone, exactly
pilot             some tasks, written to a scratch folder      measured, in processes of their own
duration_estimate seconds of all tasks                         from a pilot, a speed, or as stated
prices            dollars                                      from a table of a date
task_size_advice  the task size with the least work            from patches and memory
planner           all of it, with every problem                run_plan: as text and as JSON
tune              the fastest way to run a network             measured, each in tune_process
```
"""
