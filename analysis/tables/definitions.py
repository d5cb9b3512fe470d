"""What the quantities of the tables are, in the words that are printed with each table. Pure text."""

CPUS = "P, CPUs allocated: main + n x CPUs per runner + learners, not n alone."
THROUGHPUT = (
    "X, throughput: env steps / wall seconds after the warm-up, total over total; a rate is never a mean of rates."
)
SPEED_UP = "S(n), speed-up: T(n_ref) / T(n), T the seconds per iteration, at equal workload fingerprint."
EFFICIENCY = (
    "Efficiency per runner: S n_ref / n, and per CPU: S P_ref / P; both may exceed 1. Not per CPU where environments "
    "wait: their processes may share cores, and CPUs reserved are then not CPUs used."
)
MARGINAL = (
    "Marginal efficiency: d ln X / d ln P from the next smaller scale; 1: a CPU more gives its full share, 0: nothing."
)
KARP_FLATT = (
    "e, Karp-Flatt: (1/S - 1/p) / (1 - 1/p) with p = n / n_ref. Constant: a serial part; rising: overhead; negative: "
    "the comparison is invalid."
)
FINGERPRINT = (
    "Workload fingerprint: algorithm, environment and its waiting time, batch, minibatch x learners, learners, epochs, "
    "envs per runner, network, learning parameters, evaluation, backends, execution, threads, versions, CPU model. "
    "Efficiency is refused between rows that differ in it."
)
MEASURED = (
    "Only rows with timing `measured` enter: every process had a core of its own, or its environments wait and CPU "
    "pressure stayed under 5 %; no runner was lost, no sample dropped."
)
WEAK = "Weak efficiency: T(n_ref) / T(n) with the env steps per runner fixed; scaled speed-up: X(n) / X(n_ref)."
ALLOCATION = (
    "The same P CPUs as one trial of n runners, two of n/2, …, side by side; a row's rate is the sum over a block."
)
PHASES = (
    "Sampling = runners (the mean runner's own time) + imbalance (until the slowest has ended) + transfer (until its "
    "samples are here). Learning is the update: connectors, advantages, all epochs. Rest: the iteration less these."
)
CONNECTOR = "The records do not time the connectors apart: they are inside learning."
DECOMPOSITION = (
    "The log ratio of two throughputs = a parallel part + a batch part, each averaged over the two orders (Shapley); "
    "it needs all four cells of the 2x2. Interaction 1: the order does not matter."
)
STEPS_TO_TARGET = (
    "Steps to target: restricted mean up to the horizon over Kaplan-Meier; a run that did not get there, or failed, is "
    "censored, never left out. The target is looked for in evaluations: the value is the step of the first one at it, "
    "and intervals reach down to the one before. A cell of fewer than five runs has no interval: a bootstrap of so few "
    "would cover 62 to 87 %, not 95 %."
)
COST = "Time to target: steps to target / X. Cost: time to target x P, in CPU-hours."
HOLD_OUT = (
    "Hold-out error: |predicted - measured| / measured of the seconds per iteration (median over cells), on cells that "
    "the model was not fitted to; the same splits for every model."
)
MODEL = (
    "T_iter = T_sample + T_connect + T_update + T_sync + rest, each phase linear in non-negative unknowns. It is a "
    "prediction and is labelled so."
)
MODEL_INTERVAL = (
    "Intervals of predictions of the iteration-time model resample the blocks within cells (90 %); they know the "
    "scatter of the runs, not what a model leaves out. Those of Amdahl's law and the USL are 95 %, asymptotic: "
    "Student's t over runs on the linearised fit, which takes the law as true. Intervals of hold-out errors resample "
    "the held-out cells (95 %)."
)
CERTIFICATE = (
    "A setting holds up if, on seeds that nothing was chosen by, its mean score is not lower than the small scale's "
    "best by more than the tolerance (lower 95 % bound), and enough of its runs end at the target."
)
INTERVAL = (
    "[low, high]: 95 % interval where no other level is named; the unit of replication is the run, ratios are paired "
    "by seed where seeds are common."
)
CLOCKS = {
    "oversubscribed": "more processes than cores",
    "emulated": "a few processes did the work of all runners: they learn as real ones do, the times are not theirs",
    "tainted": "the trial failed, lost a runner or a sample, or other programs used its nodes",
}
"""Label of a clock that is not measured -> what it means."""
