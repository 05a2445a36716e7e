"""The same requests to two servers of the jobs API, and the differences between their responses."""
