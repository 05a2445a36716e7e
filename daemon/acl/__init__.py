"""Access control: tokens, policies, audit log, and encryption of secrets."""
