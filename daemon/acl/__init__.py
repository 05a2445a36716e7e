"""Who may: tokens, policies, and the seal around everything secret."""
