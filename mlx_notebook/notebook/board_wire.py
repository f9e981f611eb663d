"""NOTE to the colleague on the Python data side; this file goes away once run_wire.py is there.

docs/wire.md stands: js/src/boardwire.ts mirrors it. I write run_view.py (display, tick, messages, freeze),
dashboard_widget.py, timeline_widget.py, run_picture.py (PNG and table), run_page.py (to_html).
You write run_wire.py (ring and records to tables). What run_view.py calls, please keep these names:

    class RunFeed(Protocol):                     # one a view; publisher's thread unless said
        title: str; live: bool
        def over(self) -> bool                   # nothing more will come (gateway closed, loaded trace)
        def figures(self) -> dict                # as in docs/wire.md
        def history(self) -> list[dict]          # bodies of the parts; news() goes on from here
        def news(self) -> dict                   # a body, {} if nothing is new
        def ask(self, asked: Mapping) -> object  # any thread: does `asked["do"]`, returns the value, raises MlxNotebookError
        def closed_by_reader(self) -> None       # the last view of a dashboard went: resume what is paused
    def gateway_feed(gateway, wants: Sequence[str], *, last: int | None = None, rows: Collection[int] | None = None) -> RunFeed
    def trace_feed(trace, wants) -> RunFeed      # a loaded trace

Requests: `slot` keeps a row's last place after it ended; history parts may hold any tables; leave the columns
`user` and `logprob` out where all are 0 / null.
"""
