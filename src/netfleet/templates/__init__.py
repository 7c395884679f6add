"""What `netfleet init` writes: experiment files with comments, and what sites begin with."""
