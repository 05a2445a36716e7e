"""Boolean options with a value: `-detach=false`, as Go's flag package accepts them.

Click's flags take no value. For each such argument, a command therefore gets another name of the
flag, which stands for the flag with this value.
"""

import re
from collections import Counter
from collections.abc import Sequence

import click

from daemon.text.option_syntax import respelled

_ASSIGNED = re.compile(r"--?([A-Za-z][\w-]*)=(.*)", re.DOTALL | re.ASCII)
# The spellings of Go's `strconv.ParseBool`. Click checks all other values, and states the error.
_VALUES = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


class _Assigned(click.Option):
    """A name of a flag that stands for the flag with a value. No help shows it."""

    def __init__(
        self, flag: click.Option, spelling: str, value: str, *, on: bool, is_switch: bool
    ) -> None:
        super().__init__([spelling], is_flag=True, hidden=True, expose_value=False)
        self._flag, self._value = flag, value
        # `on` is the value that the flag alone has. Only a switch has a second value.
        self._on, self._is_switch = on, is_switch

    def add_to_parser(self, parser: "click.parser._OptionParser", ctx: click.Context) -> None:
        """Let the parser store the value of the flag."""
        flag, value = self._flag, _VALUES.get(self._value, self._value)
        if value is True:
            value = self._on if flag.is_bool_flag else flag.flag_value
        elif value is False and not self._is_switch:
            # `-no-color=false` and `-stderr=false` leave the choice to the default.
            parser.add_option(self, self.opts, self.name, action="store_const", const=True)
            return
        parser.add_option(flag, self.opts, flag.name, action="store_const", const=value)


def with_boolean_values(
    command: click.Command, arguments: Sequence[str], parent: click.Context | None = None
) -> list[str]:
    """Return the arguments of a command in a form in which its flags may have values.

    `parent` is the context of the group of commands.
    """
    words = list(arguments)
    if not any("=" in str(word) for word in words):
        return words
    context = click.Context(command, parent=parent, **command.context_settings)
    params = command.get_params(context)  # with the option of the help
    flags = {
        name: option
        for option in params
        if isinstance(option, click.Option) and option.is_flag and not isinstance(option, _Assigned)
        for name in (*option.opts, *option.secondary_opts)
    }
    stored = Counter(option.name for option in params)
    known = {name for option in params for name in option.opts}
    end = words.index("--") if "--" in words else len(words)
    for position, word in enumerate(words[:end]):
        match = _ASSIGNED.fullmatch(str(word))
        if match is None:
            continue
        stem, value = match.groups()
        name = f"-{stem}" if len(stem) == 1 else f"--{stem}"
        if (flag := flags.get(name)) is None:
            continue
        spelling = f"--{stem}:{value}"
        if spelling not in known:
            known.add(spelling)
            on = name in flag.opts
            is_choice = stored[flag.name] > 1 and not flag.secondary_opts
            is_switch = flag.is_bool_flag and on and not is_choice
            command.params.append(_Assigned(flag, spelling, value, on=on, is_switch=is_switch))
        words[position] = respelled(spelling, str(word))
    return words
