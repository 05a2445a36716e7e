"""Validation rules of a task: resources, timeouts, and each of its blocks."""

from typing import Any

import pytest

from storage.records.base import HOUR, MINUTE, SECOND
from tests.unit.jobspec.build import errors, group, in_group, in_task, job, nested, task

TOO_MUCH = "log storage (100 MB) must be less than requested disk capacity (100 MB)"


def of_task(**fields: Any) -> list[str]:
    return errors(job(group(task(**fields))))


def wrong(*texts: str) -> list[str]:
    return in_task(*texts) if texts else []


def block(subject: str, *texts: str) -> list[str]:
    return in_task(f"{subject}: {nested(*texts)}") if texts else []


# ---- the task itself ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("alloc", ['Task cannot be named "alloc"']),
        ("a/b", ["Task name cannot include slashes"]),
        ("a\\b", ["Task name cannot include slashes"]),
        ("a\0b", ["Task name cannot include null characters"]),
        (".", ['Task name "." cannot begin with a dot']),
        ("..", ['Task name ".." cannot begin with a dot']),
        (".a", ['Task name ".a" cannot begin with a dot']),
        ("é" * 101, ["Task name must be under 201 bytes, currently 202"]),
        ("a b", []),
        ("a.b", []),
    ],
)
def test_task_name_is_a_valid_directory_name(name: str, texts: list[str]) -> None:
    assert errors(job(group(task(name)))) == (in_task(*texts, name=name) if texts else [])


def test_a_task_has_a_driver() -> None:
    assert of_task(Driver="") == wrong("Missing task driver")


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"KillTimeout": -1}, ["KillTimeout must be a positive value"]),
        ({"ShutdownDelay": -1}, ["ShutdownDelay must be a positive value"]),
        ({"KillTimeout": 10 * MINUTE}, []),
        (
            {"KillTimeout": 10 * MINUTE + SECOND},
            ["KillTimout (10m1s) longer than the group's ProgressDeadline (10m0s)"],
        ),
    ],
)
def test_durations_are_not_negative(given: dict[str, Any], texts: list[str]) -> None:
    assert of_task(**given) == wrong(*texts)


@pytest.mark.parametrize(("kind", "update"), [("batch", None), ("service", 0)])
def test_kill_timeout_is_unlimited_without_a_progress_deadline(
    kind: str, update: int | None
) -> None:
    block = {} if update is None else {"Update": {"ProgressDeadline": update}}
    assert errors(job(group(task(KillTimeout=HOUR), **block), Type=kind)) == []


# ---- resources and logs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"Cores": 2}, []),
        ({"Cores": 2, "CPU": 0}, []),
        (
            {"Cores": 2, "CPU": 100},
            ["Task can only ask for 'cpu' or 'cores' resource, not both."],
        ),
        (
            {"Cores": -1, "CPU": 100},
            ["cores value (-1) cannot be negative"],
        ),
        ({"MemoryMaxMB": -1}, []),
        (
            {"MemoryMaxMB": 200},
            ["MemoryMaxMB value (200) should be larger than MemoryMB value (300)"],
        ),
        ({"SecretsMB": 300}, []),
        (
            {"SecretsMB": 301},
            ["SecretsMB value (301) cannot be larger than MemoryMB value (300)"],
        ),
        ({"SecretsMB": -1}, ["SecretsMB value (-1) cannot be negative"]),
        ({"Devices": [{"Name": "gpu"}], "NUMA": {"Devices": ["gpu"]}}, []),
        (
            {"NUMA": {"Devices": ["gpu"]}},
            ['numa device "gpu" not requested as task resource'],
        ),
    ],
)
def test_resources_must_be_possible(given: dict[str, Any], texts: list[str]) -> None:
    assert of_task(Resources=given) == (wrong(nested(*texts)) if texts else [])


def test_errors_of_minimum_resources_are_combined() -> None:
    texts = ["minimum CPU value is 1; got 0", "minimum MemoryMB value is 10; got 9"]
    assert of_task(Resources={"CPU": 0, "MemoryMB": 9}) == wrong(nested(nested(*texts)))


def test_core_affinity_has_a_known_type() -> None:
    asked = job(group(task(Resources={"NUMA": {"Affinity": "near"}})))
    text = "numa affinity must be one of none, prefer, or require"
    assert errors(asked)[0] == wrong(nested(text))[0]


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"Name": "vendor/gpu"}, []),
        (
            {"Name": ""},
            [
                "device name must be given as one of the following: "
                "type, vendor/type, or vendor/type/name"
            ],
        ),
        (
            {"Name": "gpu", "Constraints": [{"Operand": "distinct_hosts"}]},
            ['Constraint 1 validation failed: using unsupported operand "distinct_hosts"'],
        ),
        (
            {"Name": "gpu", "Constraints": [{"LTarget": "x", "Operand": "="}]},
            ["Constraint 1 validation failed: " + nested('Operator "=" requires an RTarget')],
        ),
        (
            {
                "Name": "gpu",
                "Affinities": [{"LTarget": "x", "RTarget": "y", "Operand": "=", "Weight": 0}],
            },
            [f"Affinity 1 validation failed: {nested('Affinity weight cannot be zero')}"],
        ),
    ],
)
def test_devices_must_be_valid(given: dict[str, Any], texts: list[str]) -> None:
    wanted = nested(f"device 1 failed validation: {nested(*texts)}")
    assert of_task(Resources={"Devices": [given]}) == (wrong(wanted) if texts else [])


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"MaxFiles": 1, "MaxFileSizeMB": 1}, []),
        ({"MaxFiles": 0}, ["minimum number of files is 1; got 0"]),
        ({"MaxFileSizeMB": 0}, ["minimum file size is 1MB; got 0"]),
        ({"MaxFiles": 10, "MaxFileSizeMB": 10}, [TOO_MUCH]),
        ({"MaxFiles": 9, "MaxFileSizeMB": 11}, []),
        ({"MaxFiles": 10, "MaxFileSizeMB": 10, "Disabled": True}, [TOO_MUCH]),
    ],
)
def test_logs_must_fit_on_the_disk(given: dict[str, Any], texts: list[str]) -> None:
    found = errors(job(group(task(LogConfig=given), EphemeralDisk={"SizeMB": 100})))
    assert found == (wrong(nested(*texts)) if texts else [])


# ---- artifacts ----------------------------------------------------------------------------------


def not_allowed(destination: str) -> str:
    return (
        f"destination '{destination}' is not allowed: use a path below local/, secrets/, tmp/ or"
        " ${NOMAD_ALLOC_DIR}/data"
    )


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"GetterSource": "https://x/y"}, []),
        ({}, ["source must be specified"]),
        (
            {"GetterSource": "s", "GetterMode": "tree"},
            ['invalid artifact mode "tree"; must be one of: any, file, dir'],
        ),
        ({"GetterSource": "s", "RelativeDest": "../alloc/data/x"}, []),
        ({"GetterSource": "s", "RelativeDest": "/alloc/data"}, []),
        ({"GetterSource": "s", "RelativeDest": "${NOMAD_META_where}"}, []),
        ({"GetterSource": "s", "RelativeDest": "secrets/key", "GetterMode": "file"}, []),
        ({"GetterSource": "s", "RelativeDest": "./"}, [not_allowed("./")]),
        ({"GetterSource": "s", "RelativeDest": "private"}, [not_allowed("private")]),
        ({"GetterSource": "s", "RelativeDest": "../alloc/logs"}, [not_allowed("../alloc/logs")]),
        (
            {"GetterSource": "s", "RelativeDest": "local", "GetterMode": "file"},
            [not_allowed("local")],
        ),
        (
            {"GetterSource": "s", "RelativeDest": "../../../x"},
            ["destination escapes allocation directory"],
        ),
    ],
)
def test_artifacts_must_be_valid(given: dict[str, Any], texts: list[str]) -> None:
    found = of_task(Artifacts=[given])
    assert found == block("Artifact 1 validation failed", *texts)


@pytest.mark.parametrize(
    ("checksum", "texts"),
    [
        ("md5:" + "0" * 32, []),
        ("sha1:" + "0" * 40, []),
        ("sha256:" + "0aF9" * 16, []),
        ("sha512:" + "0" * 128, []),
        ("  md5:" + "0" * 32 + " ", []),
        ("md5:${NOMAD_META_sum}", []),
        ("", ["checksum value cannot be empty"]),
        ("abc", ['checksum must be given as "type:value"; got "abc"']),
        ("md5:a:b", ['checksum must be given as "type:value"; got "md5:a:b"']),
        ("md5:abc", ["invalid checksum: encoding/hex: odd length hex string"]),
        ("md5:zz", ["invalid checksum: encoding/hex: invalid byte: U+007A 'z'"]),
        ("md5:\u00e9", ["invalid checksum: encoding/hex: invalid byte: U+00C3 '\u00c3'"]),
        ("md5:ab", ["invalid md5 checksum: ab"]),
        ("crc:ab", ["unsupported checksum type: crc"]),
    ],
)
def test_checksums_must_be_valid(checksum: str, texts: list[str]) -> None:
    given = {"GetterSource": "s", "GetterOptions": {"checksum": checksum}}
    assert of_task(Artifacts=[given]) == block("Artifact 1 validation failed", *texts)


@pytest.mark.parametrize(("name", "good"), [("f", True), ("../f", False), ("a/b", False)])
def test_artifact_has_a_plain_file_name(name: str, good: bool) -> None:
    given = {"GetterSource": "s", "GetterOptions": {"filename": name}}
    text = f"invalid artifact filename \"{name}\"; must be a name without '/'"
    assert of_task(Artifacts=[given]) == (
        [] if good else block("Artifact 1 validation failed", text)
    )


# ---- templates ----------------------------------------------------------------------------------


def template(**fields: Any) -> dict[str, Any]:
    return {"EmbeddedTmpl": "x", "DestPath": "local/x", **fields}


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (template(), []),
        (template(EmbeddedTmpl="", SourcePath="local/y"), []),
        (
            template(EmbeddedTmpl=""),
            ["Must specify a source path or have an embedded template"],
        ),
        (template(DestPath=""), ["Must specify a destination for the template"]),
        (template(DestPath="../../x"), ["destination escapes allocation directory"]),
        (template(ChangeMode="noop"), []),
        (template(ChangeMode="signal", ChangeSignal="SIGHUP"), []),
        (
            template(ChangeMode="signal", ChangeSignal="SIGHUP", Envvars=True),
            ["cannot use signals with env var templates"],
        ),
        (
            template(ChangeMode="script"),
            ["must specify change script configuration value when change mode is script"],
        ),
        (
            template(ChangeMode="script", ChangeScript={"Args": ["a"]}),
            ["must specify script path value when change mode is script"],
        ),
        (template(ChangeMode="script", ChangeScript={"Command": "a"}), []),
        (
            template(ChangeMode="reload"),
            ["Invalid change mode. Must be one of the following: noop, signal, script, restart"],
        ),
        (template(Splay=-1), ["Must specify positive splay value"]),
        (template(Perms="0777"), []),
        (
            template(Perms="rwx"),
            [
                'Failed to parse "rwx" as octal: strconv.ParseUint: parsing "rwx": invalid syntax',
            ],
        ),
        (
            template(Perms="10000"),
            [
                'Failed to parse "10000" as octal: strconv.ParseUint: parsing "10000": value out '
                "of range",
            ],
        ),
        (template(Wait={"Min": 1, "Max": 1}), []),
        (template(Wait={"Min": HOUR}), []),
        (
            template(Wait={"Min": HOUR, "Max": MINUTE}),
            ["wait min 1h0m0s is greater than max 1m0s"],
        ),
    ],
)
def test_templates_must_be_valid(given: dict[str, Any], texts: list[str]) -> None:
    assert of_task(Templates=[given]) == block("Template 1 validation failed", *texts)


def test_templates_have_different_destinations() -> None:
    given = [template(), template(DestPath="local/y"), template(), template()]
    assert of_task(Templates=given) == wrong(
        "Template 3 has same destination as 1", "Template 4 has same destination as 1"
    )


# ---- identities and secrets ---------------------------------------------------------------------


def identity(name: str = "i", **fields: Any) -> dict[str, Any]:
    return {"Name": name, "Audience": ["a"], "TTL": HOUR, **fields}


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (identity(), []),
        (identity(ChangeMode="signal", ChangeSignal="SIGHUP"), []),
        (identity(File=True, Filepath="local/token"), []),
        (identity("a b"), ['invalid name "a b". Must match regex ^[a-zA-Z0-9-_]{1,128}$']),
        (identity(Audience=["a", ""]), ["an empty string is an invalid audience (2)"]),
        (
            identity(ChangeSignal="SIGHUP"),
            ['can only use change_signal="SIGHUP" with change_mode="signal"'],
        ),
        (
            identity(ChangeMode="signal"),
            ['change_signal must be specified when using change_mode="signal"'],
        ),
        (
            identity(ChangeMode="nope"),
            ["invalid change_mode: nope, must be one of noop, restart, signal"],
        ),
        (identity(TTL=-1), ["ttl must be >= 0"]),
        (
            identity(Filepath="local/token"),
            ["file parameter must be true in order to specify filepath"],
        ),
    ],
)
def test_identities_must_be_valid(given: dict[str, Any], texts: list[str]) -> None:
    subject = f'Identity "{given["Name"]}" is invalid'
    assert of_task(Identities=[given]) == block(subject, *texts)


def test_default_identity_does_not_expire() -> None:
    text = "ttl for default identity not yet supported"
    assert of_task(Identity={"TTL": 1}) == block('Identity "default" is invalid', text)


def test_a_task_has_one_default_identity() -> None:
    given = [identity("default", TTL=0)] * 2
    assert of_task(Identities=given) == wrong("Duplicate default identities found")


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"Name": "s", "Provider": "nomad", "Path": "p"}, []),
        ({"Name": "s", "Provider": "nomad", "Path": "p", "Config": {"a": 1}}, []),
        ({"Name": "s", "Provider": "own", "Path": "p", "Env": {"a": "b"}}, []),
        (
            {"Provider": "own", "Path": "p"},
            ["secret name cannot be empty", "secret name must match regex ^[a-zA-Z0-9_]{1,128}$"],
        ),
        (
            {"Name": "a-b", "Provider": "own", "Path": "p"},
            ["secret name must match regex ^[a-zA-Z0-9_]{1,128}$"],
        ),
        ({"Name": "s", "Path": "p"}, ["secret provider cannot be empty"]),
        ({"Name": "s", "Provider": "own"}, ["secret path cannot be empty"]),
        (
            {"Name": "s", "Provider": "nomad", "Path": "p", "Env": {"a": "b"}},
            ["nomad provider cannot use the env block"],
        ),
        (
            {"Name": "s", "Provider": "own", "Path": "p", "Config": {"a": 1}},
            ["custom plugin provider own cannot use the config block"],
        ),
    ],
)
def test_secrets_must_be_valid(given: dict[str, Any], texts: list[str]) -> None:
    subject = f'Secret "{given.get("Name", "")}" is invalid'
    assert of_task(Secrets=[given]) == block(subject, *texts)


def test_secrets_have_different_names() -> None:
    given = [{"Name": "s", "Provider": "nomad", "Path": "p"}] * 2
    assert of_task(Secrets=given) == wrong('Duplicate secret "s" found')


def test_vault_secret_needs_a_vault_block() -> None:
    given = {"Name": "s", "Provider": "vault", "Path": "p"}
    assert of_task(Secrets=[given]) == wrong('Secret "s" has provider "vault" but no vault block')


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"ChangeMode": "noop"}, []),
        (
            {"ChangeMode": "nope"},
            ['Unknown change mode "nope", must be one of noop, restart, signal'],
        ),
        ({"ChangeMode": "signal", "ChangeSignal": "SIGHUP"}, []),
    ],
)
def test_change_mode_of_a_new_token_is_validated(given: dict[str, Any], texts: list[str]) -> None:
    assert of_task(Vault=given) == block("Vault validation failed", *texts)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"Templates": [template(ChangeMode="signal", ChangeSignal="")]},
            "Must specify signal value when change mode is signal",
        ),
        (
            {"Vault": {"ChangeMode": "signal", "ChangeSignal": ""}},
            'Signal must be specified when using change mode "signal"',
        ),
    ],
)
def test_a_signal_has_a_name(given: dict[str, Any], text: str) -> None:
    found = of_task(**given)
    assert text in found[-1]
    assert "Set contains constraint requires an RTarget" in found[-1]  # the implied constraint


# ---- the other blocks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ([{"Name": "a", "Command": "ls"}], []),
        ([{"Name": "a"}], [f"Action a validation failed: {nested('command cannot be empty')}"]),
        (
            [{"Name": "a b", "Command": "ls"}],
            ["Action a b validation failed: " + nested("invalid name 'a b'")],
        ),
        ([{"Name": "a", "Command": "ls"}] * 3, ["Action a defined multiple times"]),
    ],
)
def test_actions_must_be_valid(given: list[dict[str, Any]], texts: list[str]) -> None:
    assert of_task(Actions=given) == wrong(*texts)


@pytest.mark.parametrize(
    ("file", "texts"),
    [
        ("input.json", []),
        (
            "../../../x",
            ["Dispatch Payload validation failed: destination escapes allocation directory"],
        ),
    ],
)
def test_payload_file_must_be_in_the_task_directory(file: str, texts: list[str]) -> None:
    assert of_task(DispatchPayload={"File": file}) == wrong(*texts)


@pytest.mark.parametrize(
    ("hook", "texts"),
    [
        ("prestart", []),
        ("poststart", []),
        ("poststop", []),
        ("", ["Lifecycle validation failed: no lifecycle hook provided"]),
        ("never", ["Lifecycle validation failed: invalid hook: never"]),
    ],
)
def test_lifecycle_of_a_task_is_validated(hook: str, texts: list[str]) -> None:
    tasks = [task("other"), task(Lifecycle={"Hook": hook, "Sidecar": True})]
    assert errors(job(group(*tasks))) == wrong(*texts)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"Volume": "v", "Destination": "/v"}, []),
        ({"Volume": "v", "PropagationMode": "bidirectional", "SELinuxLabel": "z"}, []),
        ({"Volume": "w"}, ["Volume Mount (0) references undefined volume w"]),
        (
            {"Volume": "v", "PropagationMode": "sideways"},
            [
                'volume mount has an invalid propagation mode: "sideways", must be one of '
                "bidirectional, host-to-task, private"
            ],
        ),
        (
            {"Volume": "v", "SELinuxLabel": "y"},
            ['volume mount has an invalid SELinux label: "y", must be z or Z'],
        ),
    ],
)
def test_volume_mounts_must_be_valid(given: dict[str, Any], texts: list[str]) -> None:
    volumes = {"v": {"Name": "v", "Type": "host", "Source": "s"}}
    wanted = [
        text if "references" in text else f'Volume Mount (0) is invalid: "{nested(text)}"'
        for text in texts
    ]
    assert errors(job(group(task(VolumeMounts=[given]), Volumes=volumes))) == wrong(*wanted)


def test_a_mount_names_its_volume() -> None:
    assert of_task(VolumeMounts=[{"Volume": ""}]) == wrong(
        "Volume Mount (0) references undefined volume ",
        f'Volume Mount (0) is invalid: "{nested("volume mount references an empty volume")}"',
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ID": "p", "Type": "node", "MountDir": "/csi"}, None),
        ({"Type": "node", "MountDir": "/csi"}, "must have a non-empty PluginID"),
        (
            {"ID": "p", "Type": "x", "MountDir": "/csi"},
            "PluginType must be one of 'node', 'controller', or 'monolith', got: \"x\"",
        ),
        (
            {"ID": "p", "Type": "node", "MountDir": "/csi", "StagePublishBaseDir": "/csi/a"},
            "StagePublishBaseDir must not be a subdirectory of MountDir, got: "
            'StagePublishBaseDir="/csi/a" MountDir="/csi"',
        ),
    ],
)
def test_storage_plugin_is_validated(given: dict[str, Any], text: str | None) -> None:
    wanted = wrong(f"CSIPluginConfig {text}") if text else []
    assert of_task(CSIPluginConfig=given) == wanted


# ---- proxies of a service mesh ------------------------------------------------------------------


MESHED = {"Name": "api", "PortLabel": "9001", "Connect": {"SidecarService": {}}}


@pytest.mark.parametrize(
    ("proxy", "services", "texts"),
    [
        ({"Kind": "connect-proxy:api"}, [MESHED], []),
        ({"Kind": "connect-proxy:"}, [], []),
        ({"Kind": "other:api"}, [], []),
        (
            {"Kind": "connect-proxy:api", "Leader": True},
            [MESHED],
            ["Connect proxy task must not have leader set"],
        ),
        (
            {"Kind": "connect-proxy:api"},
            [],
            ['No Connect services in task group with Connect proxy ("api")'],
        ),
        (
            {"Kind": "connect-proxy:web"},
            [MESHED],
            [
                'Connect proxy service name ("web") not found in Connect services from task group: '
                "[api]"
            ],
        ),
    ],
)
def test_a_proxy_belongs_to_a_service_of_its_group(
    proxy: dict[str, Any], services: list[dict[str, Any]], texts: list[str]
) -> None:
    assert errors(job(group(task(**proxy), Services=services))) == wrong(*texts)


def test_a_proxy_has_no_services_of_its_own() -> None:
    proxy = task(Kind="connect-proxy:api", Services=[{"Name": "s"}])
    (found,) = errors(job(group(proxy, Services=[MESHED])))
    assert "* Connect proxy task must not have a service block\n" in found
    assert found.startswith(in_group("")[0][:40])
