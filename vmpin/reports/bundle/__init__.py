"""What a bug report needs, packed into one file: read by root, looked through, and sent by whoever runs it.

By lists of what goes in, never of what stays out: no environment of any process, no command line but of VMMs and their
helpers that vmpin follows (and of these no secret), no annotation, no foreign configuration but the keys that concern
CPUs. What stays out: asking the watcher and the journal (cli/gather).
"""
