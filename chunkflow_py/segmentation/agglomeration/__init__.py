"""Exact agglomeration of affinities: the same segments for any division into tasks.

```
affinities -> edge_affinities   integers on the edges between voxels
           -> edge_fragments    the edges that join voxels into fragments
           -> contacts          a table row for each pair of touching fragments: sum, count, tie
           -> region_merging    the merges in a box that no voxel outside of the box can change
           -> hierarchy         all merges in order; segments at a threshold; small segments
```

An edge joins two neighbouring voxels, and has an affinity. A region is a fragment, or several
fragments that have been merged. Mean-affinity agglomeration is a greedy algorithm. In each step, it
merges the two touching regions for which the edges between the two have the greatest mean affinity.
It ends when no mean reaches a threshold. This algorithm needs the whole volume. This package
computes exactly the result of this algorithm, for any division into tasks, because

* all sums are integers;
* contacts have one total order: the better of two contacts has the greater mean affinity. If the
  means are equal, the better contact has the smaller *tie*. The tie of a contact is the lowest
  index of the edges between its two regions;
* two regions are *mutual best* if each has its best contact with the other. They stay mutual best
  until they are merged, even if other regions are merged first (mean affinity is *reducible*). A
  task merges mutual best regions if both lie inside its box. All other merges are left to tasks
  with larger boxes.

The idea of delaying merges at a boundary comes from Lu, Zlateski and Seung 2021, arXiv:2106.10795.
"""
