"""Where rows come from and what is done to them before a ladder sees them."""
