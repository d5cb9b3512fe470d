"""What a host and a Ray cluster are, as far as a study cares.

host       CPUs, memory, GPUs, file systems, the batch job that this process belongs to
load       what a host's cores do besides the study; processes: children, starts, Ray's own
shape      the nodes of a Ray cluster, for a plan
apart      a process of its own for a person's code
cluster    a private Ray, or one that was joined; shipping: what travels to its nodes

No other package reads /proc, /sys or a scheduler's variables. Ray is imported inside functions of `cluster` alone.
"""
