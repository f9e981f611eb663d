"""The threaded shell: thread, device lease, handles, lifecycle."""
