"""Bodies of job files to job documents, by tables of what each block may hold."""
