"""The pages of the navigation, and the keys of the interface. No I/O."""

# URL, name, and the letter that opens the page after `g`.
PLACES = (
    ("/ui/", "Overview", "o"),
    ("/ui/jobs", "Jobs", "j"),
    ("/ui/runs", "Runs", "r"),
    ("/ui/services", "Services", "s"),
    ("/ui/nodes", "Nodes", "n"),
    ("/ui/evaluations", "Evaluations", "e"),
    ("/ui/calendars", "Calendars", "c"),
    ("/ui/variables", "Variables", "v"),
    ("/ui/access", "Access", "a"),
    ("/ui/log", "Events", "l"),
    ("/ui/settings", "Settings", "t"),
)
KEYS = (
    ("Ctrl K, or /", "Find anything: type a part of a name, or an action such as “stop web”"),
    ("↓ ↑ Enter", "Choose a result, and open it"),
    ("?", "Show these keys"),
    ("Esc", "Close a dialog"),
    *((f"g {key}", name) for _, name, key in PLACES),
    ("Ctrl F6", "Leave a terminal"),
)


def is_current(target: str, here: str) -> bool:
    """Return whether a page of the navigation has the page at `here`."""
    if target == here:
        return True
    singular = target.removesuffix("s")
    return target != "/ui/" and target.endswith("s") and here.startswith(f"{singular}/")
