"""Parts that the commands share: parser, client, options and output."""
