"""Intensities: histograms of whole volumes, contrast, smoothing."""
