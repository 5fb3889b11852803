"""The allocator's tasks in the watcher: CRI calls for what no answer has carried, and changed annotations."""
