"""Every private access of MLflow, which is imported inside functions only.

`tests/contract/test_private.py` has a test for each.
"""

from typing import Any


def schemas(engine: Any) -> tuple[Any, Any]:
    """Return the schema of a database, and the one that the installed MLflow needs; the database stays as it is.

    MLflow has a command that changes the tables, and a client that makes or changes them at its start, but no public
    function that only looks.
    """
    from mlflow.store.db import utils

    return utils._get_schema_version(engine), utils._get_latest_schema_revision()
