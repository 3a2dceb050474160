"""Records to tables, plots and documents. Reads records, runs nothing."""
