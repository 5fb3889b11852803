"""`vmpin reporter`: an own process, in an own pod, that writes to the API server what the watcher of its node reports.

Here live the connections (API server, status socket), their loops, and the process. Four threads: one follows the
watcher, one watches the node's pods, one hands the watcher these pods' untrusted text, and the main one writes; no
asyncio, as the kubernetes package has none that all of its versions share. The watcher never waits for any of it."""
