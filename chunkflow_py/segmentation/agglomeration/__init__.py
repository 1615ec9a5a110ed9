"""Exact agglomeration of affinities: the same segments for any division into tasks.

```
affinities -> edge_affinities   integers on the edges between voxels
           -> edge_fragments    the edges that join voxels into fragments
           -> contacts          sum, count and tie of the edges between two fragments
           -> region_merging    the merges in a box that no voxel outside of the box can change
           -> hierarchy         all merges in order, the cut at a threshold, small segments
```

A region is a fragment, or several fragments that have been merged. Mean-affinity agglomeration
repeatedly merges the two regions with the greatest mean affinity, until no mean reaches a
threshold. This greedy algorithm needs the whole volume. This package computes exactly its result,
for any division into tasks, because

* all sums are integers;
* contacts have one total order: the better of two contacts has the greater mean affinity. If the
  means are equal, the better contact has the smaller *tie*, which is the lowest index of its edges;
* two regions that are each other's best contact remain each other's best contact until they are
  merged, whatever other merges come first (mean affinity is *reducible*). A task merges such pairs
  if both regions lie inside its box, and leaves everything else to a larger box.

The idea of delaying merges at a boundary comes from Lu, Zlateski and Seung 2021, arXiv:2106.10795.
"""
