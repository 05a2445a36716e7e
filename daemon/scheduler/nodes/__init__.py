"""Choose a node: feasibility, capacity and scoring."""
