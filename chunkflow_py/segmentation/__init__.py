"""What turns maps into objects, and measures them."""
