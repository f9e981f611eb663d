"""Where rows keep their state, and how one forward serves many of them."""
