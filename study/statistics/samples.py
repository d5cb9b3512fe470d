"""What callers pass as samples: checked, and refused with what to do. Imports NumPy, `study.errors`."""

import numpy as np
import numpy.typing as npt

from study.errors import AnalysisError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def as_sample(where: str, values: npt.ArrayLike) -> FloatArray:
    """Return `values` as a checked sample: not empty, finite, shape (runs,)."""
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or numbers.size == 0:
        raise AnalysisError(
            where=where,
            rule="must hold at least one number in 1 dimension",
            got=f"shape {numbers.shape}",
            fix="Pass one number per run.",
            code="bad-sample-shape",
        )
    finite = np.isfinite(numbers)
    if not finite.all():
        fix = "Write a failed run as score 0, or as a time that is not reached."
        raise AnalysisError(
            where=where,
            rule="every value must be finite",
            got=numbers[~finite][0],
            fix=fix,
            code="value-not-finite",
        )
    return numbers


def variance(sample: FloatArray) -> float:
    """Return the unbiased variance; exactly 0 where all values are equal, and for one run."""
    return float(sample.var(ddof=1)) if np.ptp(sample) > 0 else 0.0
