"""Labels of segments: components, links between tasks, tables, fragments."""
