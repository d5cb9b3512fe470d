"""Jobs that start Ray on several machines, run a study there, and leave nothing behind. Imports no engine.

commands     `python -m study launch`; options: of its subcommands; manifests: files for `ray up` and KubeRay
launcher     what a launcher is; schedulers: SLURM, OAR, PBS, ssh
job          what the programs of a job have to know
supervisor   the main program of a job; ray_cluster: the nodes of Ray, from its side
agent        the program on every host, which the supervisor speaks to; node: one Ray node, and its ports
"""
