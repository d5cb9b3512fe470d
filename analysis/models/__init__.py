"""Models of throughput against runners: laws, the iteration-time model, their errors on cells that they did not see.

Pure: NumPy, SciPy, `study.errors` and `study.statistics`; scikit-learn when the Gaussian process is fitted. What a
model says of cells that nobody ran is a prediction, and tables label it so.
"""

from analysis.models.batch import BestBatch, CriticalBatch, best_batch, fit_critical_batch
from analysis.models.calibration import Bound, Verdict, verdict
from analysis.models.comparison import (
    HeldOut,
    ModelError,
    Split,
    compare,
    larger_scales,
    leave_one_scale_out,
    leave_settings_out,
)
from analysis.models.derived import (
    MARGINAL_THRESHOLD,
    knee,
    runner_limit,
    throughput_ceiling,
)
from analysis.models.gaussian_process import GaussianProcessFit, fit_gaussian_process
from analysis.models.iteration_time import IterationTimeFit, Prediction, fit_iteration_time
from analysis.models.laws import AmdahlFit, ErnestFit, GustafsonFit, fit_amdahl, fit_ernest, fit_gustafson
from analysis.models.observations import Cells, Observations, Selection, from_runs
from analysis.models.phases import PHASES, UNKNOWNS
from analysis.models.rivals import MODELS
from analysis.models.usl import USLFit, fit_usl, usl_peak, usl_throughput

__all__ = [
    "MARGINAL_THRESHOLD",
    "MODELS",
    "PHASES",
    "UNKNOWNS",
    "AmdahlFit",
    "BestBatch",
    "Bound",
    "Cells",
    "CriticalBatch",
    "ErnestFit",
    "GaussianProcessFit",
    "GustafsonFit",
    "HeldOut",
    "IterationTimeFit",
    "ModelError",
    "Observations",
    "Prediction",
    "Selection",
    "Split",
    "USLFit",
    "Verdict",
    "best_batch",
    "compare",
    "fit_amdahl",
    "fit_critical_batch",
    "fit_ernest",
    "fit_gaussian_process",
    "fit_gustafson",
    "fit_iteration_time",
    "fit_usl",
    "from_runs",
    "knee",
    "larger_scales",
    "leave_one_scale_out",
    "leave_settings_out",
    "runner_limit",
    "throughput_ceiling",
    "usl_peak",
    "usl_throughput",
    "verdict",
]
