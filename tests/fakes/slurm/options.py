"""The options that each program accepts, and its error message for any other option.

Only options of the real programs with a known meaning are accepted. Any other option is a fault of
the caller.
"""

from collections.abc import Mapping, Sequence

NO_SUCH_JOB = "Invalid job id specified"
Options = dict[str, str]

# The long name of each option, with its short letter. An option takes a value if its name ends in
# `=`.
SBATCH = {
    "parsable": "",
    "requeue": "",
    "no-requeue": "",
    "job-name=": "J",
    "comment=": "",
    "output=": "o",
    "error=": "e",
    "export=": "",
    "partition=": "p",
    "cpus-per-task=": "c",
    "mem=": "",
    "tmp=": "",
    "time=": "t",
    "constraint=": "C",
    "nice=": "",
    "account=": "A",
    "qos=": "q",
    "chdir=": "D",
    "uid=": "",
    "gid=": "",
    "nodes=": "N",
    "ntasks=": "n",
    "hold": "H",
    "quiet": "Q",
    "signal=": "",
    "open-mode=": "",
    "input=": "i",
    "array=": "a",
}
SQUEUE = {
    "noheader": "h",
    "array": "r",
    "states=": "t",
    "name=": "n",
    "jobs=": "j",
    "format=": "o",
    "Format=": "O",
    "partition=": "p",
    "user=": "u",
    "me": "",
}
SCANCEL = {"batch": "b", "full": "f", "signal=": "s", "name=": "n", "quiet": "Q", "me": ""}
SRUN = {
    "jobid=": "",
    "overlap": "",
    "quiet": "Q",
    "pty": "",
    "export=": "",
    "chdir=": "D",
    "unbuffered": "u",
    "uid=": "",
    "gid=": "",
    "input=": "i",
    "nodes=": "N",
    "ntasks=": "n",
    "cpus-per-task=": "c",
    "mem=": "",
}
SINFO = {"noheader": "h", "Node": "N", "partition=": "p", "format=": "o", "nodes=": "n"}
SCONTROL = {"oneliner": "o"}
KNOWN: Mapping[str, Mapping[str, str]] = {
    "sbatch": SBATCH,
    "squeue": SQUEUE,
    "scancel": SCANCEL,
    "srun": SRUN,
    "sinfo": SINFO,
    "scontrol": SCONTROL,
}


class Refused(Exception):
    """The message of a program and its exit status.

    If `aloud`, the program prints the message to standard output.
    """

    def __init__(self, text: str, status: int = 1, *, aloud: bool = False) -> None:
        super().__init__(text)
        self.status, self.aloud = status, aloud


def parse(program: str, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options by their long names, and the positional arguments."""
    known = KNOWN[program]
    found: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word in ("--version", "-V"):
            return {"version": ""}, []
        name, value = _split(program, known, word, rest)
        found[name] = value
    return found, rest


def _split(program: str, known: Mapping[str, str], word: str, rest: list[str]) -> tuple[str, str]:
    status = 255 if program in ("sbatch", "srun") else 1
    if word.startswith("--"):
        name, given, value = word[2:].partition("=")
        if name in known and not given:
            return name, ""
        if f"{name}=" in known:
            return name, value if given else rest.pop(0)
        text = f"unrecognized option '{word}'"
    else:
        letters = {letter: name for name, letter in known.items() if letter}
        name, value = letters.get(word[1], ""), word[2:]
        if name.endswith("="):
            return name[:-1], value or rest.pop(0)
        if name:
            if value:
                rest.insert(0, f"-{value}")
            return name, ""
        text = f"invalid option -- '{word[1]}'"
    raise Refused(f'{program}: {text}\nTry "{program} --help" for more information', status)
