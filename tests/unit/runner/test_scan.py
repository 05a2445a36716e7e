from daemon.runner.drivers.scan import Mark, Process, belonging


def process(pid: int, **fields: object) -> Process:
    given = {"parent": 1, "group": pid, "session": pid, "alloc_id": "", "task": "", **fields}
    return Process(pid=pid, **given)


def test_a_process_belongs_by_its_environment() -> None:
    processes = [
        process(10, alloc_id="a", task="main"),
        process(11, alloc_id="a", task="other"),
        process(12, alloc_id="b", task="main"),
    ]
    assert belonging(processes, Mark("a", "main")) == [10]


def test_a_mark_without_a_task_means_all_of_an_allocation() -> None:
    processes = [process(10, alloc_id="a", task="x"), process(11, alloc_id="a", task="y")]
    assert belonging(processes, Mark("a")) == [10, 11]


def test_a_process_without_environment_belongs_by_its_session_or_group() -> None:
    processes = [process(10, session=7), process(11, group=7), process(12)]
    assert belonging(processes, Mark("a", "main", session=7)) == [10, 11]


def test_what_a_process_of_the_task_has_started_belongs_to_it_however_deep() -> None:
    processes = [
        process(20, parent=10),
        process(30, parent=20),
        process(10, alloc_id="a", task="main"),
    ]
    assert sorted(belonging(processes, Mark("a", "main"))) == [10, 20, 30]


def test_the_shim_is_not_one_of_the_processes_it_watches() -> None:
    processes = [process(10, alloc_id="a", task="main"), process(11, alloc_id="a", task="main")]
    assert belonging(processes, Mark("a", "main", shim=10)) == [11]
