"""Meshes of segments: made, simplified, stored, downloaded."""
