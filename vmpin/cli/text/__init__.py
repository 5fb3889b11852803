"""Documents as a person reads them: tables and sentences that the verbs of vmpin/cli print."""
