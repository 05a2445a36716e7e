from daemon.launcher.process_scan import Process, ProcessCriteria, belonging


def process(pid: int, **fields: object) -> Process:
    return Process(pid=pid, **{"parent": 1, "group": pid, "session": pid, **fields})


def found(processes: list[Process], meant: ProcessCriteria) -> list[int]:
    return [process.pid for process in belonging(processes, meant)]


def test_process_is_identified_by_its_environment() -> None:
    processes = [
        process(10, allocation="a", task="main"),
        process(11, allocation="a", task="other"),
        process(12, allocation="b", task="main"),
    ]
    assert found(processes, ProcessCriteria("a", "main")) == [10]


def test_marker_without_a_task_means_the_whole_allocation() -> None:
    processes = [process(10, allocation="a", task="x"), process(11, allocation="a", task="y")]
    assert found(processes, ProcessCriteria("a")) == [10, 11]


def test_process_without_environment_is_identified_by_session_or_group() -> None:
    processes = [process(10, session=7), process(11, group=7), process(12)]
    assert found(processes, ProcessCriteria("a", "main", session=7)) == [10, 11]


def test_deep_descendants_of_a_process_belong_to_its_task() -> None:
    processes = [
        process(20, parent=10),
        process(30, parent=20),
        process(10, allocation="a", task="main"),
    ]
    assert sorted(found(processes, ProcessCriteria("a", "main"))) == [10, 20, 30]


def test_shim_is_not_one_of_its_processes() -> None:
    processes = [process(10, allocation="a", task="main"), process(11, allocation="a", task="main")]
    assert found(processes, ProcessCriteria("a", "main", shim=10)) == [11]
