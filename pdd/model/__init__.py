"""The model's files: fetching, manifest, tokenizer and chat template. The gateway's and the engines' common ground."""
