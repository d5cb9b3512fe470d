"""What shows a running study, as the driver sees it. The command line has the implementations."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from study.driver.conductor import Conductor


class Display(Protocol):
    """Shows a running study."""

    def note(self, text: str) -> None:
        """Show one line. Never raises because it cannot be written."""

    def busy(self, what: str) -> AbstractContextManager[None]:
        """Show what is being done while the context is open."""

    def live(self, conductor: "Conductor") -> AbstractContextManager[None]:
        """Show the study while the context is open."""

    def update(self) -> None:
        """Show what has changed since the last call; called after every record."""
