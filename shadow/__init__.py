"""The second opinion: reference engines, what they would have said, and how that differs."""
