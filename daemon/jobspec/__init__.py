"""The language of jobs: pure functions from what a client wrote to a complete, checked job."""
