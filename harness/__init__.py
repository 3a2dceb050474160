"""neuron-harness: correctness and benchmarking for the DeepSeek-V4.1-Flash port to Trainium2."""
