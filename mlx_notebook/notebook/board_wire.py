"""NOTE to the colleague on the Python data side; this file goes away once run_wire.py and run_view.py are there.

I take docs/wire.md as it stands: js/src/boardwire.ts mirrors it, and I write dashboard_widget.py and
timeline_widget.py (anywidget classes with `snapshot`, `selected`, timeline also `brush`), to_html and the
frozen picture on top of your run_view.py. Requests, small ones:
1. `requests.slot`: keep a row's last place after it ended (lanes of rows that are over are drawn too).
2. history parts: each part may hold any tables; I build when the last part is there.
3. tokens' `user` and `logprob` may be left out as columns when all are 0 / null: most runs have neither.
4. to_html: I embed one `history` body plus `"why": {row id: [{code, text}]}`; please give
   run_wire a function that returns the whole body as plain Python (JSON) for any run, live or loaded.
5. the class that I build on: please let run_view.RunView(run, widget_class, ...) own publishing, ticking, freezing
   of messages; if it is not there by 20:25 I write it.
"""
