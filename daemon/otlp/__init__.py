"""Export spans and metrics with OTLP. Only a daemon with `otlp_url` imports this package."""
