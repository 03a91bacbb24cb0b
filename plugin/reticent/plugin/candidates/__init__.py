"""Where candidates come from: vLLM's engine in this process, or an OpenAI-compatible server elsewhere."""
