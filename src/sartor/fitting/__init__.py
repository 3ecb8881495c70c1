"""Where everything lies and when: formulas of sizes, views and in-place results, the arena, the plan."""
