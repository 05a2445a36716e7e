"""Templates in the language of Go's text/template: parser and renderer."""
