"""Every fact read from a host: CPUs, memory, control groups, mounts, load, processes, batch jobs.

No other package reads /proc, /sys or a scheduler's variables. Standard library and psutil only, since these modules
travel to nodes that do not have this project.
"""
