"""Grey values of whole volumes: histograms of tasks, their sum, and what is made of it."""
