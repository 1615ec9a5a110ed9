"""Label the objects in each task, link the labels of tasks, and give each object one id."""
