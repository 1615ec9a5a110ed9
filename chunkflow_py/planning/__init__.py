"""What a line will take, told before it runs.

```
amounts     tasks, bytes, requests, patches          counted from boxes alone, exactly
rehearsal   some tasks, written to a scratch place   measured, in processes of their own
durations   seconds of the whole line                from what was measured, or told
prices      dollars                                  from a table of a date
suggestion  the size of tasks that suits best        from patches and memory
stage_plan  all of it, with every misfit             words: as lines for a person
```
"""
