"""What runs next: requests, pages and the plan of one step."""
