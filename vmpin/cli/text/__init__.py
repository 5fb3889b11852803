"""Documents as a person reads them: tables and sentences that the verbs of vmpin/cli print. Imported by cli alone.

What stays out: asking for a document (cli), and making one (status)."""
