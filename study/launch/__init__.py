"""Jobs that start Ray on several machines, run a study there, and leave nothing behind. Imports no engine.

commands     `python -m study launch …`: a subcommand for each launcher, ray-up and kuberay
options      what can be given to them; job: what a launch is made of, as JSON in the job's folder
base         the base classes of launchers; slurm, oar, pbs, ssh: one launcher each; launchers: their list
manifests    the files for `ray up` and KubeRay
supervisor   the main program of a job: starts Ray (ray_cluster), runs the study, stops Ray
agent        the program on every host, which the supervisor speaks to (remote); node: one Ray node, and its ports
"""
