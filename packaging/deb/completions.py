"""Completion scripts for shells.

`completions.py DIRECTORY` writes each script to the place below DIRECTORY where its shell looks for
it. DIRECTORY stands for /usr/share.
"""

import sys
from pathlib import Path

from click.shell_completion import BashComplete, FishComplete, ZshComplete

from daemon.__main__ import command_line

PLACES = {
    BashComplete: "bash-completion/completions/steward",
    ZshComplete: "zsh/vendor-completions/_steward",
    FishComplete: "fish/vendor_completions.d/steward.fish",
}


def main(target: Path) -> None:
    """Write the completion script of each shell below the directory `target`."""
    for kind, place in PLACES.items():
        path = target / place
        path.parent.mkdir(parents=True, exist_ok=True)
        shell = kind(command_line(), {}, "steward", "_STEWARD_COMPLETE")
        # Do not call `source()`, which would ask the bash of this host for its version.
        path.write_text(shell.source_template % shell.source_vars())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
