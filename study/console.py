"""Where commands print. Imports rich."""

import os

from rich.console import Console


class SteadyConsole(Console):
    """A console that goes quiet once nobody reads it; rich's own would end the program, and with it every trial."""

    def on_broken_pipe(self) -> None:
        """Write nothing from now on."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())  # else Python stumbles over what is left to write when it ends
        os.close(nowhere)
