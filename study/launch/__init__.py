"""Jobs that start Ray on several machines, run a study there, and leave nothing behind.

job          the one description of a launch, which `study.cli.launch` makes and all others read
schedulers   the launchers: SLURM, OAR, ssh
supervisor   the main program of a job; node: the program on every host, which it speaks to
"""
