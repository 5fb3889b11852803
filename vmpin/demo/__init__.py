"""What `vmpin demo` is played with: a real VM, real containers, and a look at /proc that owes vmpin nothing."""
