"""The notebook room: magics, the publisher thread, widgets and static rendering. Nothing here decides or computes."""
