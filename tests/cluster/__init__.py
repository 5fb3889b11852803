"""A cluster for tests: an API server made of Kubernetes' own libraries, kubectl, and Helm's engine.

    apiserver/ render/ go.mod      the two programs, in Go
    build                          builds them once, into the lab's cache
    server                         runs an API server

What it is and what it lacks stands in apiserver/main.go: it proves protocol and permissions, not that a kubelet would
run a pod. docs/testing.md describes how to use it.
"""
