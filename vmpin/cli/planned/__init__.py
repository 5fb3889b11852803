"""What vmpin would do: the verb `plan`, and nodes described in a file (scenarios) for it and for `map`."""
