"""Mutation tests: small changes of the code, which the tests should detect."""
