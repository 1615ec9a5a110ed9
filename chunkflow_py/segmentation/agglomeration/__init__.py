"""Exact agglomeration: segments from affinities that do not depend on the division into tasks.

```
affinities -> edge_affinities   integers on the edges between voxels
           -> edge_fragments    which edges join voxels; fragments are their components
           -> contacts          sum, count and tie of the edges between two fragments
           -> region_merging    merges inside a box that no voxel outside of it can change
           -> hierarchy         all merges in order, the cut at a threshold, small segments
```

Mean-affinity agglomeration merges the two regions with the greatest mean affinity until no mean
reaches a threshold. Its result depends on the whole volume. It is exact for any division into tasks
because

* all sums are integers;
* there is one total order: of two contacts, the better one has the greater mean affinity, or the
  same mean and the smaller *tie*, the lowest index of its edges;
* two regions that are each other's best contact stay so until they are merged, whatever else is
  merged before (mean affinity is *reducible*). A task merges such pairs if both regions lie inside
  its box, and leaves everything else to a larger box.

The idea of delaying what touches a boundary is that of Lu, Zlateski and Seung 2021,
arXiv:2106.10795.
"""
