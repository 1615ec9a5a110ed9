"""What turns maps into objects, and measures them."""

# waterz names its scores by C++ types.
MEAN_AFFINITY = "OneMinus<MeanAffinity<RegionGraphType, ScoreValue>>"
