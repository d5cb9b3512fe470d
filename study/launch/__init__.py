"""Jobs that start Ray on allocated machines, run a study there, and leave nothing behind. Imports no engine.

command      `python -m study launch …`: options, the plan, the script, the submission
options      the command line into a job; option_checks refuses what cannot work
job          what a launch is made of, as JSON in the job's folder
slurm, oar, pbs, ssh       one scheduler each: allocation, deadline, remote commands, another life
ray_up, kuberay            manifests for those who start Ray otherwise
supervisor   runs inside the allocation: Ray up, the study, Ray down, and the job given back
agent        runs on every host, told what to do on its standard input
"""
