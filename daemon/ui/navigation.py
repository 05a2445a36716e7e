"""The pages of the navigation, and the keyboard shortcuts of the interface. No I/O."""

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


# The first segment of a URL below `/ui/`, and its entry in the navigation.
_BELOW = {
    "": "/ui/",
    "allocation": "/ui/jobs",
    "deployment": "/ui/jobs",
    "job": "/ui/jobs",
    "jobs": "/ui/jobs",
    "queues": "/ui/runs",
    "runs": "/ui/runs",
    "services": "/ui/services",
    "node": "/ui/nodes",
    "nodes": "/ui/nodes",
    "evaluation": "/ui/evaluations",
    "evaluations": "/ui/evaluations",
    "calendar": "/ui/calendars",
    "calendars": "/ui/calendars",
    "freezes": "/ui/calendars",
    "variable": "/ui/variables",
    "variables": "/ui/variables",
    "access": "/ui/access",
    "auth-method": "/ui/access",
    "auth-methods": "/ui/access",
    "binding-rule": "/ui/access",
    "explain": "/ui/access",
    "method": "/ui/access",
    "methods": "/ui/access",
    "policies": "/ui/access",
    "policy": "/ui/access",
    "role": "/ui/access",
    "roles": "/ui/access",
    "session": "/ui/access",
    "token": "/ui/access",
    "tokens": "/ui/access",
    "log": "/ui/log",
    "notify": "/ui/settings",
    "release": "/ui/settings",
    "settings": "/ui/settings",
    "snapshot": "/ui/settings",
}
_NAMES = {place: name for place, name, _ in PLACES}


def place_above(here: str) -> tuple[str, str]:
    """Return the URL and the name of the navigation entry of a page; both may be empty."""
    place = _BELOW.get(here.removeprefix("/ui/").partition("/")[0], "")
    return place, _NAMES.get(place, "")


def is_current(place: str, here: str) -> bool:
    """Return whether the page at `here` belongs to a navigation entry."""
    return place == place_above(here)[0]
