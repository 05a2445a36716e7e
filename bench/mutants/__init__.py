"""Mutation tests: small changes of the code, each of which the tests must detect."""
