"""Travel agencies fine-tune a language model together, without showing each other their mail."""
