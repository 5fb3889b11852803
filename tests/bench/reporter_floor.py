"""The least that could watch a node's pods with the package kubernetes: one list, and a watch whose lines are read.
Run by `reporting`, as a process of its own, with a kubeconfig and the node's name; prints a line once it watches."""

import json
import sys

from kubernetes import client, config


def main(kubeconfig: str, node: str) -> None:
    config.load_kube_config(kubeconfig)
    api = client.CoreV1Api()
    selector = f"spec.nodeName={node}"
    listed = json.loads(api.list_pod_for_all_namespaces(field_selector=selector, _preload_content=False).data)
    print(len(listed["items"]), flush=True)
    version = listed["metadata"]["resourceVersion"]
    del listed
    watch = api.list_pod_for_all_namespaces(field_selector=selector, watch=True, resource_version=version,
                                            allow_watch_bookmarks=True, timeout_seconds=3600, _preload_content=False)
    for _ in watch.stream():
        pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
