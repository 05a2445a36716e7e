"""Invariants of the store: each rule with a query that finds violations.

The query of a rule returns one row for each violation. The only column identifies the object that
violates the rule.
"""

from collections.abc import Iterator

from storage.queries import (
    calendars,
    document_types,
    job_status,
    jobs,
    periodic,
    scaling,
    submissions,
)
from storage.queries.allocations import IS_OVERTIME
from storage.read_pool import ReadSnapshot

_JOB_OF = "j.namespace || '/' || j.id"

RULES = {
    "the current version of a job is its newest": f"""
        SELECT {_JOB_OF} FROM jobs j
         WHERE j.version IS NOT (SELECT max(version) FROM job_versions v
                                  WHERE v.namespace = j.namespace AND v.job_id = j.id)
    """,
    "the versions of a job are numbered from 0 without a gap": f"""
        SELECT {_JOB_OF} FROM jobs j
         WHERE j.version + 1 <> (SELECT count(*) FROM job_versions v
                                  WHERE v.namespace = j.namespace AND v.job_id = j.id)
    """,
    "every version has a state": """
        SELECT namespace || '/' || job_id || ' version ' || version FROM job_versions v
         WHERE NOT EXISTS (SELECT 1 FROM job_version_states s
                            WHERE s.namespace = v.namespace AND s.job_id = v.job_id
                              AND s.version = v.version)
    """,
    "the columns of a job match its definition": f"""
        SELECT {_JOB_OF} FROM jobs j
          JOIN job_versions v
            ON v.namespace = j.namespace AND v.job_id = j.id AND v.version = j.version
         WHERE j.type <> v.document ->> '$.Type' OR j.id <> v.document ->> '$.ID'
            OR j.namespace <> v.document ->> '$.Namespace'
            OR j.parent_id <> v.document ->> '$.ParentID' OR j.stop <> v.document ->> '$.Stop'
            OR j.job_modify_index <> v.create_index
    """,
    "the child counts of a job are correct": f"""
        SELECT {_JOB_OF} FROM jobs j
         WHERE (j.children_pending, j.children_running, j.children_dead)
               <> (SELECT count(*) FILTER (WHERE c.status = 'pending'),
                          count(*) FILTER (WHERE c.status = 'running'),
                          count(*) FILTER (WHERE c.status = 'dead')
                     FROM jobs c
                    WHERE c.namespace = j.namespace AND c.parent_id = j.id AND c.parent_id <> '')
    """,
    "a job with a failed run, or an allocation beyond its time limit, is marked as failed": f"""
        SELECT {_JOB_OF} FROM jobs j
         WHERE j.has_failed_run = 0
           AND (EXISTS (SELECT 1 FROM runs r
                         WHERE r.namespace = j.namespace AND r.job_id = j.id
                           AND r.status = 'failed')
                OR EXISTS (SELECT 1 FROM allocations
                            WHERE namespace = j.namespace AND job_id = j.id AND {IS_OVERTIME}))
    """,
    "a job whose summary counts failed or lost allocations is marked as failed": f"""
        SELECT {_JOB_OF} FROM jobs j
         WHERE j.has_failed_allocation
               <> (j.summary GLOB '*"Failed":[1-9]*' OR j.summary GLOB '*"Lost":[1-9]*')
    """,
    "a queued child has no pending or blocked evaluation": f"""
        SELECT {_JOB_OF} FROM jobs j JOIN evaluations e ON e.namespace = j.namespace AND e.job_id = j.id
         WHERE j.held = 1 AND e.status IN ('pending', 'blocked')
    """,
    "a job that is not dead is in a namespace that exists": f"""
        SELECT {_JOB_OF} FROM jobs j
         WHERE j.status <> 'dead'
           AND NOT EXISTS (SELECT 1 FROM namespaces n WHERE n.name = j.namespace)
    """,
    "only the newest sources of a job are kept": f"""
        SELECT namespace || '/' || job_id FROM job_submissions
      GROUP BY namespace, job_id HAVING count(*) > {submissions.KEPT}
    """,
    "only the newest scaling events of a group are kept": f"""
        SELECT namespace || '/' || job_id FROM scaling_events
      GROUP BY namespace, job_id, task_group HAVING count(*) > {scaling.KEPT}
    """,
    "only the newest slots of a job are kept": f"""
        SELECT namespace || '/' || job_id FROM periodic_slots
      GROUP BY namespace, job_id HAVING count(*) > {periodic.KEPT}
    """,
    "no future slot is decided": """
        SELECT s.namespace || '/' || s.job_id FROM periodic_slots s
          JOIN periodic_jobs p ON p.namespace = s.namespace AND p.job_id = s.job_id
         WHERE s.slot > p.followed_to
    """,
    "the latest version of a calendar is stored": """
        SELECT namespace || '/' || name FROM calendars c
         WHERE NOT EXISTS (SELECT 1 FROM calendar_versions v
                            WHERE v.namespace = c.namespace AND v.name = c.name
                              AND v.version = c.version AND v.document = c.document)
            OR EXISTS (SELECT 1 FROM calendar_versions v
                        WHERE v.namespace = c.namespace AND v.name = c.name
                          AND v.version > c.version)
    """,
    "only the newest versions of a calendar are kept": f"""
        SELECT namespace || '/' || name FROM calendar_versions
      GROUP BY namespace, name HAVING count(*) > {calendars.KEPT}
    """,
    "a calendar refers to calendars that exist": """
        SELECT namespace || '/' || name FROM calendar_parts p
         WHERE NOT EXISTS (SELECT 1 FROM calendars c
                            WHERE c.namespace = p.namespace AND c.name = p.part)
    """,
    "a job that is not stopped uses calendars that exist": """
        SELECT u.namespace || '/' || u.job_id FROM calendar_jobs u
          LEFT JOIN calendars c ON c.namespace = u.namespace AND c.name = u.calendar
          JOIN jobs j ON j.namespace = u.namespace AND j.id = u.job_id
         WHERE c.name IS NULL OR j.stop = 1
    """,
    "no launch is expected before the next slot": """
        SELECT namespace || '/' || job_id FROM periodic_jobs WHERE next_launch < next_slot
    """,
    "the columns of an evaluation match its document": """
        SELECT id FROM evaluations
         WHERE id <> document ->> '$.ID' OR status <> document ->> '$.Status'
            OR job_id <> document ->> '$.JobID' OR namespace <> document ->> '$.Namespace'
            OR priority <> document ->> '$.Priority'
            OR create_index <> document ->> '$.CreateIndex'
            OR modify_index <> document ->> '$.ModifyIndex'
    """,
    "a job has at most one blocked evaluation": """
        SELECT namespace || '/' || job_id FROM evaluations
         WHERE status = 'blocked' GROUP BY namespace, job_id HAVING count(*) > 1
    """,
    "an allocation is of a version that exists": """
        SELECT id FROM allocations a
         WHERE NOT EXISTS (SELECT 1 FROM job_versions v
                            WHERE v.namespace = a.namespace AND v.job_id = a.job_id
                              AND v.version = a.job_version)
    """,
    "an allocation is on a node that exists": """
        SELECT id FROM allocations a
         WHERE NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = a.node_id)
    """,
    "desired allocations have unique names": """
        SELECT name
          FROM (SELECT namespace, job_id, name, count(*) AS number, max(job_version) AS newest,
                       count(DISTINCT job_version) AS versions
                  FROM allocations
                 WHERE desired_status = 'run' AND client_status IN ('pending', 'running')
                   AND coalesce(health ->> '$.Canary', 0) = 0
              GROUP BY namespace, job_id, name, node_id) a
         WHERE number > versions
               -- A promoted canary has the name of the allocation that it replaces, until that
               -- allocation is stopped. If the rollout fails, this lasts until the next version.
            OR number > 1
               AND NOT EXISTS (SELECT 1 FROM deployments d
                                WHERE d.namespace = a.namespace AND d.job_id = a.job_id
                                  AND (d.status IN ('running', 'paused')
                                       OR d.status = 'failed' AND d.job_version = a.newest))
               AND NOT EXISTS (SELECT 1 FROM evaluations e
                                WHERE e.namespace = a.namespace AND e.job_id = a.job_id
                                  AND e.status = 'pending')
    """,
    "only allocations that have not ended hold ports": """
        SELECT a.id FROM allocation_ports p JOIN allocations a ON a.id = p.allocation_id
         WHERE a.client_status < 'pending' OR a.node_id <> p.node_id
    """,
    "the allocated resources of a node are summed correctly": """
        SELECT node_id
          FROM (SELECT node_id, number, cpu, memory, disk FROM holdings WHERE number > 0
                UNION ALL
                SELECT node_id, count(*), sum(cpu), sum(memory), sum(disk) FROM allocations
                 WHERE client_status >= 'pending' GROUP BY node_id)
      GROUP BY node_id, number, cpu, memory, disk HAVING count(*) <> 2
    """,
    "the counts of allocations are correct": """
        SELECT node_id || ' ' || client_status
          FROM (SELECT node_id, client_status, number FROM allocation_counts WHERE number > 0
                UNION ALL
                SELECT node_id, client_status, count(*) FROM allocations
              GROUP BY node_id, client_status)
      GROUP BY node_id, client_status, number HAVING count(*) <> 2
    """,
    "the counts of jobs are correct": """
        SELECT status FROM (SELECT status, number FROM job_counts WHERE number > 0
                            UNION ALL
                            SELECT status, count(*) FROM jobs GROUP BY status)
      GROUP BY status, number HAVING count(*) <> 2
    """,
    "the events of a task are numbered without a gap": """
        SELECT allocation_id || ' task ' || task FROM task_events
      GROUP BY allocation_id, task HAVING max(number) - min(number) + 1 <> count(*)
    """,
    "the columns of a deployment match its document": """
        SELECT id FROM deployments
         WHERE id <> document ->> '$.ID' OR status <> document ->> '$.Status'
            OR job_id <> document ->> '$.JobID' OR namespace <> document ->> '$.Namespace'
            OR job_version <> document ->> '$.JobVersion'
            OR modify_index <> document ->> '$.ModifyIndex'
    """,
    "a job has at most one active deployment": """
        SELECT namespace || '/' || job_id FROM deployments
         WHERE status IN ('running', 'paused') GROUP BY namespace, job_id HAVING count(*) > 1
    """,
    "events are in the order of the writes": """
        SELECT number FROM (SELECT number, write_index,
                                   lag(write_index) OVER (ORDER BY number) AS before FROM events)
         WHERE write_index < before
    """,
    "an ended run has no step that can still change": """
        SELECT r.namespace || '/' || r.job_id || ' run ' || r.number FROM runs r
          JOIN run_steps s USING (namespace, job_id, number)
         WHERE r.status NOT IN ('running', 'stopping') AND s.outcome IS NULL
    """,
    "a step has an outcome exactly when it has ended": """
        SELECT namespace || '/' || job_id || ' run ' || number || ' step ' || step FROM run_steps
         WHERE (outcome IS NULL) <> (state IN ('waiting', 'held', 'open'))
    """,
    "only a step that was opened has allocations": """
        SELECT a.id FROM allocations a
          JOIN runs r ON r.namespace = a.namespace AND r.job_id = a.job_id
                     AND r.version = a.job_version
          JOIN run_steps s ON s.namespace = r.namespace AND s.job_id = r.job_id
                          AND s.number = r.number AND s.step = a.task_group
         WHERE s.opened = 0
    """,
    "an ended run has no desired allocations": """
        SELECT a.id FROM allocations a
          JOIN runs r ON r.namespace = a.namespace AND r.job_id = a.job_id
                     AND r.version = a.job_version
         WHERE r.status NOT IN ('running', 'stopping') AND a.desired_status = 'run'
           AND a.client_status >= 'pending'
    """,
    "a step counts the bytes of its outputs": """
        SELECT s.namespace || '/' || s.job_id || ' run ' || s.number || ' step ' || s.step
          FROM run_steps s
         WHERE s.output_bytes <> (SELECT coalesce(sum(o.size), 0) FROM run_outputs o
                                   WHERE o.namespace = s.namespace AND o.job_id = s.job_id
                                     AND o.number = s.number AND o.step = s.step)
    """,
    # With the acceptance of a step that was never opened, a person may write outputs. A run of one
    # step has copies of the outputs of other steps.
    "outputs belong to an element of a step that was opened": """
        SELECT o.namespace || '/' || o.job_id || ' run ' || o.number || ' step ' || o.step
          FROM run_outputs o JOIN runs r USING (namespace, job_id, number)
          LEFT JOIN run_steps s USING (namespace, job_id, number, step)
         WHERE s.step IS NULL OR o.element >= s.total
            OR (s.opened = 0 AND o.alloc_id <> '' AND r.only_step = '')
    """,
    "an unfinished run has something to wait for": """
        SELECT r.namespace || '/' || r.job_id || ' run ' || r.number FROM runs r
         WHERE r.status IN ('running', 'stopping')
           AND NOT EXISTS (SELECT 1 FROM evaluations e
                            WHERE e.namespace = r.namespace AND e.job_id = r.job_id
                              AND e.status IN ('pending', 'blocked'))
           AND NOT EXISTS (SELECT 1 FROM allocations a
                            WHERE a.namespace = r.namespace AND a.job_id = r.job_id
                              AND a.client_status >= 'pending')
           AND NOT EXISTS (SELECT 1 FROM run_steps s
                            WHERE s.namespace = r.namespace AND s.job_id = r.job_id
                              AND s.number = r.number AND s.state = 'held')
           AND NOT EXISTS (SELECT 1 FROM step_slots s
                            WHERE s.namespace = r.namespace AND s.job_id = r.job_id
                              AND s.number = r.number AND s.wanted > s.held)
    """,
    "a run that started a job names the child, and each other final effect has a reason": """
        SELECT namespace || '/' || job_id || ' trigger ' || id FROM triggers
         WHERE (state = 'fired') <> (child_id <> '')
            OR state IN ('ignored', 'refused', 'replaced', 'expired') AND reason = ''
    """,
    "a run waits only at a job that follows its source, once for each source and value": """
        SELECT t.namespace || '/' || t.job_id || ' trigger ' || min(t.id) FROM triggers t
          LEFT JOIN job_sources s ON s.namespace = t.namespace AND s.job_id = t.job_id
                                 AND s.source_namespace = t.source_namespace
                                 AND s.source_id = t.source_id
         WHERE t.state = 'waiting'
      GROUP BY t.namespace, t.job_id, t.source_namespace, t.source_id, t.value
        HAVING count(*) > 1 OR count(s.place) = 0 OR min(t.expires) = 0
    """,
    "a job that follows others launches children and has steward_after": """
        SELECT DISTINCT s.namespace || '/' || s.job_id FROM job_sources s
          JOIN jobs j ON j.namespace = s.namespace AND j.id = s.job_id
          JOIN job_versions v
            ON v.namespace = j.namespace AND v.job_id = j.id AND v.version = j.version
         WHERE j.launches_children = 0 OR v.document ->> '$.Meta.steward_after' IS NULL
    """,
    "a run that holds or awaits slots has not ended": """
        SELECT e.namespace || '/' || e.job_id || ' run ' || e.number FROM queue_entries e
          JOIN runs r USING (namespace, job_id, number)
         WHERE r.status NOT IN ('running', 'stopping')
    """,
    "a run that waits for slots has no task": """
        SELECT e.namespace || '/' || e.job_id || ' run ' || e.number FROM queue_entries e
          JOIN runs r USING (namespace, job_id, number)
          JOIN allocations a ON a.namespace = e.namespace AND a.job_id = e.job_id
                            AND a.job_version = r.version
         WHERE e.state = 'waiting' AND a.client_status IN ('pending', 'running')
    """,
    "a queue with waiting runs and no used slot is marked as changed": """
        SELECT DISTINCT e.namespace || '/' || e.name
          FROM queue_entries e INDEXED BY queue_entries_waiting
         WHERE e.state = 'waiting'
           AND NOT EXISTS (SELECT 1 FROM queues_changed c
                            WHERE c.namespace = e.namespace AND c.name = e.name)
           AND NOT EXISTS (SELECT 1 FROM queue_entries h INDEXED BY queue_entries_holding
                            WHERE h.namespace = e.namespace AND h.name = e.name
                              AND h.state = 'holding')
           AND NOT EXISTS (SELECT 1 FROM frozen_jobs f
                            WHERE f.namespace = e.namespace AND f.job_id = e.job_id)
    """,
    "a job waits for the end of a freeze that exists": """
        SELECT f.namespace || '/' || f.job_id FROM frozen_jobs f
         WHERE NOT EXISTS (SELECT 1 FROM freezes z WHERE z.id = f.freeze_id)
    """,
    "a stopped job waits for no freeze": """
        SELECT f.namespace || '/' || f.job_id FROM frozen_jobs f
          JOIN jobs j ON j.namespace = f.namespace AND j.id = f.job_id
         WHERE j.stop = 1
           AND NOT EXISTS (SELECT 1 FROM evaluations e
                            WHERE e.namespace = f.namespace AND e.job_id = f.job_id
                              AND e.status = 'pending')
    """,
    "a run that a freeze holds before its first step has no slot": """
        SELECT e.namespace || '/' || e.job_id || ' run ' || e.number FROM queue_entries e
          JOIN frozen_jobs f ON f.namespace = e.namespace AND f.job_id = e.job_id
         WHERE e.state = 'holding'
           AND NOT EXISTS (SELECT 1 FROM run_steps s
                            WHERE s.namespace = e.namespace AND s.job_id = e.job_id
                              AND s.number = e.number AND s.opened <> 0)
    """,
    "a step that holds or awaits slots may begin or has begun": """
        SELECT s.namespace || '/' || s.job_id || ' run ' || s.number || ' step ' || s.step
          FROM step_slots s
          JOIN run_steps r USING (namespace, job_id, number, step)
         WHERE r.state NOT IN ('held', 'open')
    """,
    "a step has a slot for each active element": """
        SELECT s.namespace || '/' || s.job_id || ' run ' || s.number || ' step ' || s.step
          FROM step_slots s
          JOIN runs r USING (namespace, job_id, number)
          JOIN allocations a ON a.namespace = s.namespace AND a.job_id = s.job_id
                            AND a.job_version = r.version AND a.task_group = s.step
         WHERE a.client_status IN ('pending', 'running')
      GROUP BY s.namespace, s.job_id, s.number, s.step, s.name
        HAVING count(DISTINCT a.name) > s.held
    """,
    "one queue of the first waiting step of a namespace is in use, or is marked as changed": """
        SELECT s.namespace || '/' || s.job_id || ' run ' || s.number || ' step ' || s.step
          FROM step_slots s
         WHERE (s.namespace, s.job_id, s.number, s.step) =
               (SELECT f.namespace, f.job_id, f.number, f.step FROM step_slots f
                 WHERE f.namespace = s.namespace AND f.wanted > f.held
              ORDER BY f.priority DESC, f.arrived, f.job_id, f.number, f.place LIMIT 1)
      GROUP BY s.namespace, s.job_id, s.number, s.step
        HAVING sum(EXISTS (SELECT 1 FROM queues_changed c
                            WHERE c.namespace = s.namespace AND c.name = s.name)
                OR EXISTS (SELECT 1 FROM step_slots h INDEXED BY step_slots_holding
                            WHERE h.namespace = s.namespace AND h.name = s.name AND h.held > 0)
                OR EXISTS (SELECT 1 FROM queue_entries e
                            WHERE e.namespace = s.namespace AND e.name = s.name)) = 0
    """,
    "no index is higher than that of the last write": " UNION ALL ".join(
        f"SELECT '{table}' FROM {table} WHERE {column} > (SELECT last_index FROM store)"
        for table, column in (
            ("table_indexes", "last_index"),
            ("jobs", "modify_index"),
            ("job_versions", "create_index"),
            ("evaluations", "modify_index"),
            ("allocations", "modify_index"),
            ("deployments", "modify_index"),
            ("nodes", "modify_index"),
            ("events", "write_index"),
            ("moments", "last_index"),
        )
    ),
    "no object was modified before it was created": " UNION ALL ".join(
        f"SELECT id FROM {table} WHERE modify_index < create_index"
        for table in ("jobs", "evaluations", "allocations", "deployments", "nodes")
    ),
    "the index of a table is not older than its rows": " UNION ALL ".join(
        f"SELECT '{table}' WHERE (SELECT max(modify_index) FROM {table})"
        f" > coalesce((SELECT last_index FROM table_indexes WHERE name = '{table}'), 0)"
        for table in ("jobs", "evaluations", "allocations", "deployments", "nodes")
    ),
}


def find_violations(db: ReadSnapshot) -> Iterator[str]:
    """Yield a description of each violation.

    If any rows cannot be read, report only these rows. The rules are then not checked, because
    their queries read the same rows.
    """
    unreadable = [f"documents can be read: {error}" for error in document_types.unreadable(db)]
    if unreadable:
        yield from unreadable
        return
    for rule, query in RULES.items():
        for row in db.all(query):
            yield f"{rule}: violated by {row[0]}"
    yield from _unsettled(db)
    yield from _not_followed(db)


def _unsettled(db: ReadSnapshot) -> Iterator[str]:
    """Yield a description of each stored status or summary that differs from the computed one."""
    for row in db.all("SELECT * FROM jobs"):
        if row["status"] != job_status.status_of(db, row):
            yield f"the stored status of a job is correct: violated by {row['id']}"
        if row["summary"] != job_status.counts_of(db, row):
            yield f"the stored counts of a job are correct: violated by {row['id']}"


def _not_followed(db: ReadSnapshot) -> Iterator[str]:
    for row in db.all("SELECT namespace, id FROM jobs"):
        key = (row["namespace"], row["id"])
        job = jobs.current(db, *key)
        followed = periodic.of_job(db, *key) is not None
        if job is not None and followed != periodic.is_followed(job):
            yield f"only periodic jobs have a stored schedule: violated by {row['id']}"
