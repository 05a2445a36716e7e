"""Settings from file, environment and flags."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import pytest

from daemon.cli.core.options import _CONNECTION, Command
from daemon.config.loading import load_settings
from daemon.config.settings import FIELDS, Settings
from storage.errors import Invalid


def loaded(
    tmp_path: Path,
    text: str = "",
    environment: Mapping[str, str] | None = None,
    **flags: object,
) -> Settings:
    file = tmp_path / "steward.toml"
    file.write_text(text)
    return load_settings(file, environment or {}, flags)


def test_command_line_overrides_the_environment_and_the_file(tmp_path) -> None:
    text = 'datacenter = "file"\nregion = "file"\nnode_class = "file"'
    environment = {"STEWARD_REGION": "environment", "STEWARD_NODE_CLASS": "environment"}
    config = loaded(tmp_path, text, environment, node_class="flag")
    assert (config.datacenter, config.region, config.node_class) == ("file", "environment", "flag")


def test_texts_are_converted_to_the_type_of_the_setting(tmp_path) -> None:
    environment = {
        "STEWARD_PORT": "0",
        "STEWARD_DEV": "true",
        "STEWARD_NODE_META": "zone=a,rack=b=c",
        "STEWARD_HOST_NAMES": "one,two",
        "STEWARD_DATA_DIR": "/srv/steward",
    }
    config = loaded(tmp_path, "", environment)
    assert (config.port, config.dev) == (0, True)
    assert config.node_meta == {"zone": "a", "rack": "b=c"}
    assert config.host_names == ["one", "two"]
    assert config.data_dir == Path("/srv/steward")


def test_variables_of_the_command_line_are_ignored(tmp_path) -> None:
    names = [name for option in _CONNECTION for name in _variables_of(option)]
    names += ["STEWARD_CLI_SHOW_HINTS", "STEWARD_TOKEN_FILE", "STEWARD_CONFIG", "STEWARD_VAR_count"]
    assert loaded(tmp_path, "", dict.fromkeys(names, "x")).port == 4646


def _variables_of(option: Callable[[Command], Command]) -> list[str]:
    """Return Steward's environment variables that can hold a command line option."""
    command = click.command()(option(lambda: None))
    return [name for param in command.params for name in param.envvar or () if name[0] == "S"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("STEWARD_DATADIR", "STEWARD_DATA_DIR"),
        ("STEWARD_NODE_CLAS", "STEWARD_NODE_CLASS"),
        ("STEWARD_TOKN", "STEWARD_TOKEN"),
    ],
)
def test_unknown_variable_gets_a_suggestion(tmp_path, name: str, nearest: str) -> None:
    words = f"the environment: unknown variable '{name}'; did you mean '{nearest}'"
    with pytest.raises(Invalid, match=re.escape(words)):
        loaded(tmp_path, "", {name: "x"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('datacentre = "x"', ["unknown setting 'datacentre'", "did you mean 'datacenter'"]),
        ("port = 70000", ["port = 70000", "steward.toml", "65535"]),
        ("tls_cert = true", ["tls_cert = True", "steward.toml", "path of a file"]),
        ('data_dir = "a\\u0000b"', ["data_dir = 'a\\x00b'", "without NUL"]),
        (
            'key_file = "~nobody.there/k"',
            ["key_file = '~nobody.there/k'", "does not exist on this host"],
        ),
        (f"retention_days = {10**30}", ["retention_days = ", "<= 100000"]),
        ("thaw_per_second = 0", ["thaw_per_second = 0", ">= 1"]),
        ("port = -1", ["port = -1", "write an integer from 0 to 65535"]),
        ('thaw_per_second = "x"', ["write an integer from 1 to 1000"]),
        ("memory_total_mb = -1", ["write an integer from 0 to 2147483647"]),
        ('dev = "x"', ["dev = 'x'", "write true or false"]),
        ("thaw_per_second = 1001", ["thaw_per_second = 1001", "<= 1000"]),
        (f"retention_events = {2**31}", ["retention_events = ", "<= 2147483647"]),
        ('port = "http"', ["port = 'http'", "steward.toml"]),
        ("port = 1\nport = 2", ["not valid TOML"]),
        ('log_level = "loud"', ["log_level = 'loud'", "choose one of debug, info, warning, error"]),
        ("memory_total_mb = -1", ["memory_total_mb = -1"]),
        ("retention_allocs = -1", ["retention_allocs = -1", "steward.toml", ">= 0"]),
        ("retention_event_days = 0", ["retention_event_days = 0", "steward.toml", ">= 1"]),
        ("retention_alloc_days = 'x'", ["retention_alloc_days = 'x'", "`int`"]),
    ],
)
def test_invalid_setting_is_named_with_its_value_and_source(
    tmp_path, text: str, words: list[str]
) -> None:
    with pytest.raises(Invalid) as caught:
        loaded(tmp_path, text)
    assert [word for word in words if word not in str(caught.value)] == []


def test_invalid_variable_is_named_as_a_variable(tmp_path) -> None:
    with pytest.raises(Invalid, match=r"port = 'x' \(the environment\)"):
        loaded(tmp_path, "", {"STEWARD_PORT": "x"})


@pytest.mark.parametrize("name", ["sub", "nomad_task", "Team", "a-b", "", "1a"])
def test_extra_claim_cannot_use_a_reserved_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid, match="cannot be a claim"):
        loaded(tmp_path, f'[identity_claims]\n"{name}" = "x"')


@pytest.mark.parametrize("name", ["team", "subject", "cost_center2"])
def test_extra_claim_has_a_unique_name(tmp_path: Path, name: str) -> None:
    assert loaded(tmp_path, f'[identity_claims]\n{name} = "x"').identity_claims == {name: "x"}


def test_invalid_meta_pair_is_refused(tmp_path) -> None:
    with pytest.raises(Invalid, match="STEWARD_NODE_META: 'zone' is not of the form key=value"):
        loaded(tmp_path, "", {"STEWARD_NODE_META": "zone"})


def test_named_file_must_exist(tmp_path) -> None:
    with pytest.raises(Invalid, match=r"cannot read the configuration .*absent\.toml"):
        load_settings(tmp_path / "absent.toml", {}, {})


def test_a_development_daemon_listens_on_loopback_only(tmp_path) -> None:
    with pytest.raises(Invalid, match="listens only on loopback"):
        loaded(tmp_path, dev=True, bind="192.0.2.1")


def test_service_data_directory_comes_from_systemd(tmp_path) -> None:
    config = loaded(tmp_path, "", {"STATE_DIRECTORY": "/var/lib/elsewhere"})
    assert config.data_dir == Path("/var/lib/elsewhere")


def test_a_data_directory_becomes_absolute(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert loaded(tmp_path, data_dir="here").data_dir == tmp_path / "here"


def test_ipv6_address_is_bracketed(tmp_path) -> None:
    assert loaded(tmp_path, bind="::1", port=1).address == "http://[::1]:1"


EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing is bound here


def test_plain_text_beyond_loopback_needs_a_second_setting(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="or allow_plain_text = true"):
        loaded(tmp_path, bind=EVERYWHERE)
    assert loaded(tmp_path, bind=EVERYWHERE, allow_plain_text="true").bind == EVERYWHERE
    both = {"tls_cert": "/c.pem", "tls_key": "/k.pem"}
    assert loaded(tmp_path, bind=EVERYWHERE, **both).address.startswith("https://")


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_plain_text_on_loopback_is_accepted(tmp_path: Path, bind: str) -> None:
    assert loaded(tmp_path, bind=bind).bind == bind


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tls_cert": "/c.pem"}, "tls_cert and tls_key belong together"),
        ({"tls_key": "/k.pem"}, "tls_cert and tls_key belong together"),
        ({"tls_client_ca": "/ca.pem"}, "needs tls_cert"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, "trusted_proxies: 10.0.0.1/8 has host bits set"),
        ({"trusted_proxies": ["proxy.lan"]}, "write addresses or networks"),
        ({"oidc_issuer": "steward.lan"}, "oidc_issuer = 'steward.lan'"),
        ({"notify_link": "steward.lan"}, "notify_link = 'steward.lan'"),
        ({"notify_link": "https://steward.lan/ui/"}, "without /ui"),
        ({"otlp_url": "127.0.0.1:4318"}, "otlp_url = '127.0.0.1:4318'"),
        ({"otlp_url": "http://collector:4318/v1/traces"}, "without /v1/traces"),
        ({"otlp_url": "http://user:pass@collector"}, "write the address"),
        ({"otlp_token_file": "/etc/token"}, "needs otlp_url"),
        ({"otlp_url": "http://far:4318", "otlp_token_file": "/etc/token"}, "use https"),
        ({"otlp_percent": 101}, "otlp_percent = 101"),
        ({"task_environment": ["A", "*"]}, r"task_environment: '\*' is not a variable name"),
        ({"raw_exec_user": "root"}, "raw_exec_user = 'root': tasks would run as root"),
        ({"task_users": ["a b"]}, "task_users: 'a b' is not a user"),
        ({"denied_host_uids": "5-1"}, "denied_host_uids = '5-1': '5-1' ends before it begins"),
        ({"task_environment": ["A=B"]}, "task_environment: 'A=B' is not a variable name"),
        ({"oidc_issuer": "https://steward.lan/"}, "without a slash"),
    ],
)
def test_contradictory_settings_are_refused(
    tmp_path: Path, flags: Mapping[str, object], words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        loaded(tmp_path, **flags)


def test_a_service_has_its_socket_in_its_runtime_directory(tmp_path: Path) -> None:
    environment = {"STATE_DIRECTORY": str(tmp_path), "RUNTIME_DIRECTORY": "/run/steward"}
    assert loaded(tmp_path, "", environment).socket_path == Path("/run/steward/steward.sock")


def test_another_data_directory_has_its_own_socket(tmp_path: Path) -> None:
    assert loaded(tmp_path, data_dir=str(tmp_path)).socket_path == tmp_path / "steward.sock"
    assert loaded(tmp_path, socket="none").socket_path is None


def program(folder: Path, mode: int = 0o755) -> Path:
    file = folder / "mail"
    file.touch()
    file.chmod(mode)
    return file


def test_notification_command_is_a_program_of_the_operator(tmp_path: Path) -> None:
    words = [str(program(tmp_path)), "--to", "ops"]
    text = f"[notify_commands]\nmail = {words}"
    assert loaded(tmp_path, text).notify_commands == {"mail": words}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mail = []", "begin with the absolute path of a program on this host"),
        ("mail = ['mail']", "begin with the absolute path of a program on this host"),
        ("mail = ['/no/such']", "begin with the absolute path of a program on this host"),
        ("'a b' = ['/bin/true']", "a name has at most 64 letters, digits, - and _"),
        ("mail = '/bin/true'", "notify_commands = "),
    ],
)
def test_invalid_notify_command_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(Invalid, match=re.escape(problem)):
        loaded(tmp_path, f"[notify_commands]\n{text}")


def test_command_writable_by_others_is_refused(tmp_path: Path) -> None:
    file = program(tmp_path, 0o777)
    with pytest.raises(
        Invalid, match="runs with the daemon's rights, but other users may write to"
    ):
        loaded(tmp_path, f"[notify_commands]\nmail = ['{file}']")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    file = program(open_to_all)
    open_to_all.chmod(0o777)
    with pytest.raises(Invalid, match=f"other users may write to {open_to_all}"):
        loaded(tmp_path, f"[notify_commands]\nmail = ['{file}']")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a directory")
def test_command_below_a_directory_of_the_daemon_user_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "store"
    inner = above / "bin"
    inner.mkdir(parents=True)
    file = program(inner)
    os.chown(above, 61234, 61234)
    with pytest.raises(Invalid, match=f"user 61234 owns '{above}'"):
        loaded(tmp_path, f"[notify_commands]\nmail = ['{file}']")


def test_host_volume_is_a_named_directory(tmp_path: Path) -> None:
    text = f"[[host_volumes]]\nname = 'data'\npath = '{tmp_path}'\nread_only = true"
    (volume,) = loaded(tmp_path, text).host_volumes
    assert (volume.name, volume.path, volume.read_only) == ("data", str(tmp_path), True)


@pytest.mark.parametrize(
    ("name", "path", "problem"),
    [
        ("", "/", "must be unique and not empty"),
        ("data", "relative", "path = 'relative': name a directory of this host"),
        ("data", "/no/such/place", "path = '/no/such/place': name a directory of this host"),
    ],
)
def test_invalid_host_volume_is_refused(tmp_path: Path, name: str, path: str, problem: str) -> None:
    with pytest.raises(Invalid, match=re.escape(problem)):
        loaded(tmp_path, f"[[host_volumes]]\nname = '{name}'\npath = '{path}'")


def test_host_network_has_a_name_and_addresses(tmp_path: Path) -> None:
    text = (
        "[[host_networks]]\nname = 'lan'\ncidr = '10.0.0.0/8'\nreserved_ports = '22, 8000-8010'\n"
        "[[host_networks]]\nname = 'vpn'\ninterface = 'wg0'"
    )
    lan, vpn = loaded(tmp_path, text).host_networks
    assert (lan.name, lan.cidr, lan.interface) == ("lan", "10.0.0.0/8", "")
    assert lan.reserved_ports == "22, 8000-8010"
    assert (vpn.name, vpn.cidr, vpn.interface) == ("vpn", "", "wg0")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name = ''\ncidr = '::/0'", "the name '' must be unique and not empty"),
        ("name = 'default'\ncidr = '::/0'", "'default': this name is reserved for the default"),
        ("name = 'lan'", "host_networks, 'lan': set cidr, interface, or both"),
        ("name = 'lan'\ncidr = '10.0.0'", "'lan', cidr = '10.0.0': write an address or a network"),
        ("name = 'lan'\nip = '10.0.0.1'", "unknown field `ip`"),
        (
            "name = 'lan'\ninterface = 'lo'\nreserved_ports = '22,http'",
            "reserved_ports = '22,http': 'http' is neither a port from 1 to 65535 nor a range",
        ),
        (
            "name = 'lan'\ninterface = 'lo'\nreserved_ports = '90-80'",
            "'90-80' is neither a port from 1 to 65535 nor a range such as 8000-8010",
        ),
        ("name = 'lan'\ninterface = 'lo'\nreserved_ports = '70000'", "'70000' is neither a port"),
    ],
)
def test_invalid_host_network_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(Invalid, match=re.escape(problem)):
        loaded(tmp_path, f"[[host_networks]]\n{text}")


@pytest.mark.parametrize("name", ["REGION", "PORT", "HOST_NAMES", "NODE_META", "DATA_DIR"])
def test_undecodable_environment_is_refused(tmp_path, name: str) -> None:
    with pytest.raises(Invalid, match=f"{name.lower()} = .* .the environment.: write it as UTF-8"):
        loaded(tmp_path, "", {f"STEWARD_{name}": "a=b,c=\udcff"})


# ---- Nomad's spellings ---------------------------------------------------------------------------


def test_nomad_spelling_of_users_and_raw_exec_is_read(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        """
        [plugin.raw_exec.config]
        enabled = true
        denied_host_uids = "0,100-200"
        denied_host_gids = "0"
        [client.options]
        "user.denylist" = "root, postgres"
        "user.checked_drivers" = "exec"
        [client]
        bridge_network_name = "nomad"
        bridge_network_subnet = "10.1.0.0/16"
        [limits]
        http_max_conns_per_client = 7
        """,
    )
    assert (config.bridge_network_name, config.bridge_network_subnet) == ("nomad", "10.1.0.0/16")
    assert config.connections_per_address == 7
    assert (config.raw_exec, config.denied_host_uids, config.denied_host_gids) == (
        True,
        "0,100-200",
        "0",
    )
    assert config.user_denylist == ["root", "postgres"]
    assert config.user_checked_drivers == ["exec"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[plugin.raw_exec.config]\nenable = true",
            "unknown setting 'plugin.raw_exec.config.enable'",
        ),
        ("[plugin.docker.config]\nx = 1", "unknown setting 'plugin.docker'"),
        ("[limits]\nrpc_max_conns_per_client = 1", "unknown setting 'limits.rpc_max_conns_per"),
        ("[client]\nenabled = true", "unknown setting 'client.enabled'"),
        (
            '[client]\nbridge_network_name = "b"\n[client.options]\nx = 1',
            "unknown setting 'client.options.x'",
        ),
        ("client = 1", "client = 1: write it as a table"),
        ('bridge_network_name = "a;b"', "bridge_network_name = 'a;b': write 1 to 15"),
        ('bridge_network_subnet = "10.0.0.1/24"', "bridge_network_subnet = .* has host bits set"),
        ('bridge_network_subnet = "fd00::/64"', "write a subnet of IPv4 from /16 to /29"),
        ('bridge_network_subnet = "10.0.0.0/8"', "write a subnet of IPv4 from /16 to /29"),
        ("plugin = 1", "plugin = 1: write it as a table"),
        ("raw_exec = true\n[plugin.raw_exec.config]\nenabled = true", "are the same setting"),
    ],
)
def test_unknown_nomad_spelling_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        loaded(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'plugin "raw_exec" {\n  config {\n    enabled = true\n  }\n}',
            r'write the block "plugin "raw_exec" { config {" as "[plugin.raw_exec.config]"',
        ),
        (
            'datacenter = "dc1"\nclient {\n  enabled = true\n}',
            r'write the block "client {" as "[client]"',
        ),
        ('{"plugin": [{"raw_exec": {}}]}', '"enabled = true" below "[plugin.raw_exec.config]"'),
    ],
)
def test_nomad_configuration_file_is_refused_with_the_toml_spelling(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(Invalid, match=re.escape(words)):
        loaded(tmp_path, text)


def test_other_broken_files_are_not_mistaken_for_hcl(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        loaded(tmp_path, "x = {")
    assert "HCL" not in str(caught.value)


# An invalid value of each setting that holds text, as in the environment.
INVALID = {
    "user": "a b",
    "bind": "http://0.0.0.0",
    "socket": "a\nb",
    "operator_group": "a b",
    "host_names": "steward.lan,https://steward.lan",
    "trusted_proxies": "proxy.lan",
    "region": "a b",
    "datacenter": "dc*",
    "node_name": " a",
    "node_class": "a\nb",
    "node_pool": "a b",
    "node_meta": "a b=1",
    "oidc_issuer": "steward.lan",
    "identity_claims": "Team=x",
    "issuer_bind": "a b",
    "alloc_disk_limit": "loud",
    "artifact_paths": "relative",
    "host_volume_paths": "relative",
    "wrapper_bind": "a/b",
    "wrapper_url": "steward.lan",
    "notify_link": "steward.lan",
    "otlp_url": "127.0.0.1:4318",
    "raw_exec_user": "a b",
    "task_users": "a b",
    "user_denylist": "a b",
    "user_checked_drivers": "exec,raw exec",
    "denied_host_uids": "5-1",
    "denied_host_gids": "x",
    "task_environment": "A=B",
    "task_uids": "1-2",
    "task_egress": "closed",
    "bridge_network_name": "a b",
    "bridge_network_subnet": "10.0.0.0/33",
    "cgroup_parent": "/a/../b",
    "podman_socket": "podman.sock",
    "cloud_directory_url": "https://a b",
    "cloud_resource_manager_url": "management.example",
    "cloud_graph_url": "ftp://graph.example",
    "cloud_metadata_url": "http:///",
    "log_level": "loud",
    "log_format": "xml",
}
# Settings that only the file can hold, because the environment has no form for tables of tables.
TABLES = {"pools", "notify_commands", "notify_receivers", "job_policies", "host_volumes"}
TABLES |= {"host_networks"}


def test_each_setting_with_text_has_an_invalid_value() -> None:
    text = {name for name, field in FIELDS.items() if "str" in str(field.type)}
    assert text - TABLES == INVALID.keys()


@pytest.mark.parametrize("setting", INVALID)
def test_invalid_value_in_the_environment_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(Invalid, match=setting):
        loaded(tmp_path, "", {f"STEWARD_{setting.upper()}": INVALID[setting]})


@pytest.mark.parametrize("setting", sorted(TABLES))
def test_table_in_the_environment_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(Invalid, match=setting):
        loaded(tmp_path, "", {f"STEWARD_{setting.upper()}": "x"})


@pytest.mark.parametrize("setting", ["region", "datacenter", "node_pool", "bind"])
def test_needed_name_cannot_be_empty(tmp_path: Path, setting: str) -> None:
    with pytest.raises(Invalid, match=f"{setting} = ''"):
        loaded(tmp_path, "", {f"STEWARD_{setting.upper()}": ""})


def test_lists_in_the_environment_may_have_spaces_or_be_empty(tmp_path: Path) -> None:
    environment = {
        "STEWARD_HOST_NAMES": "one, two",
        "STEWARD_TASK_USERS": "",
        "STEWARD_NODE_META": "",
        "STEWARD_HOST_VOLUME_PATHS": str(tmp_path),
    }
    config = loaded(tmp_path, "", environment)
    assert (config.host_names, config.task_users, config.node_meta) == (["one", "two"], [], {})
    assert config.host_volume_paths == [str(tmp_path)]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("region", "münchen"),
        ("datacenter", "dc-1.a"),
        ("node_name", "the old one"),
        ("node_meta", "rack.row-1=a b"),
        ("bind", "::1"),
        ("host_names", "Steward.LAN,10.0.0.7"),
        ("cgroup_parent", "steward.slice/tasks"),
        ("podman_socket", "none"),
        ("cloud_metadata_url", "http://169.254.169.254"),
        ("cloud_graph_url", "http://127.0.0.1:4670/graph"),
    ],
)
def test_valid_value_in_the_environment_is_accepted(
    tmp_path: Path, setting: str, value: str
) -> None:
    loaded(tmp_path, "", {f"STEWARD_{setting.upper()}": value})
