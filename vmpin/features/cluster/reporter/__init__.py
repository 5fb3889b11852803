"""`vmpin reporter`: a process of its own, in a pod of its own, that writes its watcher's reports to the API server.

Here are its connections (API server, status socket), their loops, and the process. Four threads: one follows the
watcher, one watches the node's pods, one hands the watcher these pods' texts, and the main thread writes; no asyncio,
as the versions of the kubernetes package share none. The watcher never waits for any of them."""
