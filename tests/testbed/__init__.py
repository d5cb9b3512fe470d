"""Real SLURM, OAR and sshd on simulated hosts: network, process and mount namespaces of one machine, as root."""
