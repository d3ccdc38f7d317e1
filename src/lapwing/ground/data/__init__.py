"""Data: loaders and pairs, the inputs they hold, and what is refused of them."""
