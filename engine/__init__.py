"""The inference engine of DeepSeek-V4.1-Flash on an interchangeable table of ops."""
