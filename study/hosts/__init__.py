"""What a host is and does: CPUs, memory, control groups, load. Standard library and psutil only."""
