"""Whether a database on a server can be used, told at once. Imports SQLAlchemy, which MLflow and Optuna bring."""

import sqlalchemy

from study.errors import TrackingError
from study.harmless import mask_credentials
from study.mirrors.tracking_uri import is_database_server, with_time_limits

_DRIVERS = {
    "postgresql": "pip install 'runner-scaling-study[postgresql]'",
    "mysql": "pip install PyMySQL, and begin the URI with mysql+pymysql",
    "mariadb": "pip install PyMySQL, and begin the URI with mariadb+pymysql",
    "mssql": "pip install pyodbc, and Microsoft's ODBC driver",
}
"""How to get a driver, by the name of the database in a URI."""


def reach(uri: str, place: str) -> None:
    """Connect to a database once, if `uri` is that of a server.

    MLflow would try for two minutes, without a word, before it says why it cannot; and neither MLflow nor Optuna says
    what is wrong where Python lacks the driver or the database an encoding.

    Args:
        uri: Of any place; only databases on servers are asked.
        place: What the URI is called, for the message.

    Raises:
        TrackingError: `uri` is none, Python has no driver for the database, or it is not encoded in UTF8.
        SQLAlchemyError: It does not answer, or knows neither user nor database.
    """
    if not is_database_server(uri):
        return
    where = f"{place} {mask_credentials(uri)}"
    try:
        engine = sqlalchemy.create_engine(with_time_limits(uri), poolclass=sqlalchemy.pool.NullPool)
    except (ImportError, sqlalchemy.exc.NoSuchModuleError) as error:
        raise TrackingError(
            f"{where}: Python must have the database's driver, got none ({error}). Fix: {_DRIVERS[_dialect(uri)]}."
        ) from None
    except (ValueError, sqlalchemy.exc.ArgumentError):  # they may quote the password
        raise TrackingError(
            f"{where}: must be a URI, got one that cannot be read. "
            f"Fix: write {_dialect(uri)}://HOST:PORT/NAME, the port as a number."
        ) from None
    try:
        with engine.connect():
            pass
    except TypeError:  # psycopg gives bytes for the texts of a database whose encoding is SQL_ASCII
        raise TrackingError(
            f"{where}: the database must be encoded in UTF8, got another one. "
            "Fix: create it anew with `createdb -E UTF8 -T template0`."
        ) from None


def _dialect(uri: str) -> str:
    """Return the name of the database in a URI, such as `postgresql`."""
    return uri.partition(":")[0].partition("+")[0].lower()
