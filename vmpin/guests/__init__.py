"""Sessions with the guests' agents: vmpin's own and Kata's, and the map from containers to vCPUs that each is sent.

`manager` has a VmGuest for each VM, `vm_guest` derives its map and runs its sessions, `channels` lead
into a guest. A guest is not trusted: its reports are shown, with limits, and change nothing on the host."""
