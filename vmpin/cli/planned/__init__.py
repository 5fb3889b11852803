"""What vmpin would do: the verb `plan`, and nodes described in a file (scenarios) for it and for `map`.

What stays out: the placement of a scenario (config.scenario). Imported by cli.main and cli.map."""
