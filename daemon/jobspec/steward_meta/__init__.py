"""Steward's extensions of jobs: meta keys that begin with `steward_`.

Nomad's tools parse job files and reject unknown blocks, but meta accepts any key. Steward validates
these keys like fields, so that a misspelled key is reported. Each key is in `JOB_KEYS` or
`STEP_KEYS` and in docs/extensions.md. Code that uses a key reads its value with the key's `of`.
"""
