"""The least that could read every NodePinning with the package kubernetes: the pages of one list, parsed and dropped.
Run by `nodes`, as a process of its own, with a kubeconfig and the size of a page; prints how many there were."""

import json
import sys

from kubernetes import client, config


def main(kubeconfig: str, size: str) -> None:
    config.load_kube_config(kubeconfig)
    api = client.CustomObjectsApi()
    count, token = 0, ""
    while True:
        page = json.loads(api.list_cluster_custom_object("vmpin.io", "v1alpha1", "nodepinnings", limit=int(size),
                                                         _continue=token, _preload_content=False).data)
        count += len(page["items"])
        token = page["metadata"].get("continue") or ""
        if not token:
            break
    print(count)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
