"""What a job must fulfil, noun by noun: each rule yields the texts of what is wrong, the peer's."""
